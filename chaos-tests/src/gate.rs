//! The mutation gate: mistakes that others have made, planted one at a time. The simulator must find
//! each within its budget of seeds, or it is no proof of anything.

use mesh_consensus::planted::Bug;

use crate::faults::Story;
use crate::world::{Options, Violation, run};

/// A mistake, the story in which it should show, and how many seeds may pass before it does.
#[derive(Debug, Clone, Copy)]
pub struct Mutant {
    /// The mistake.
    pub bug: Bug,
    /// Where to look for it.
    pub story: Story,
    /// How long.
    pub budget: u64,
}

/// All of them.
pub const MUTANTS: [Mutant; 24] = [
    mutant(Bug::AckBeforeSync, Story::Crashes, 400),
    mutant(Bug::EarlyLeader, Story::Pair, 400),
    mutant(Bug::SkipEmptyConfig, Story::Membership, 20),
    mutant(Bug::DropLightReady, Story::Mixed, 10),
    mutant(Bug::SplitWrite, Story::Crashes, 200),
    mutant(Bug::StaleConfig, Story::Membership, 100),
    mutant(Bug::DoubleApply, Story::Crashes, 50),
    mutant(Bug::ReuseRaftId, Story::Disks, 100),
    mutant(Bug::StaleSnapshot, Story::Membership, 50),
    mutant(Bug::NoSnapshotReport, Story::Membership, 200),
    mutant(Bug::LeaderRemovesItself, Story::Membership, 100),
    mutant(Bug::FifoAnswers, Story::Network, 100),
    mutant(Bug::BelieveOk, Story::Mixed, 10),
    mutant(Bug::LocalRead, Story::Network, 50),
    mutant(Bug::ReuseReadContext, Story::Reads, 300),
    mutant(Bug::TickInsideReady, Story::Mixed, 20),
    mutant(Bug::BurstTicks, Story::Clocks, 20),
    mutant(Bug::RetrySync, Story::Disks, 100),
    mutant(Bug::StrictAdmit, Story::Sleeper, 50),
    mutant(Bug::NoAdmit, Story::Network, 50),
    mutant(Bug::ForgetChange, Story::Membership, 300),
    mutant(Bug::TimeGoesBack, Story::Clocks, 50),
    mutant(Bug::MaxInsteadOfWindow, Story::Network, 100),
    mutant(Bug::NoWindow, Story::Network, 50),
];

const fn mutant(bug: Bug, story: Story, budget: u64) -> Mutant {
    Mutant { bug, story, budget }
}

/// The first seed that finds the mistake, and how; `None` if the budget is spent.
pub fn find(mutant: Mutant) -> Option<(u64, Box<Violation>)> {
    let options =
        Options { story: Some(mutant.story), bug: Some(mutant.bug), ..Options::default() };
    (0..mutant.budget).find_map(|seed| run(seed, options).err().map(|found| (seed, found)))
}
