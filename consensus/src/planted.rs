//! Bugs planted on purpose, to prove that the simulator finds them.
//!
//! Compiled in only with the feature `planted`, which only `chaos-tests` turns on; without it
//! [`Planted::has`] is `false` at compile time. Each is a mistake that others have made.

/// A mistake. `chaos-tests` lists for each how many seeds may pass before it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// Votes and acknowledgements leave before they are on disk.
    AckBeforeSync,
    /// A leader sends entries before its own term and vote are on disk (one voter and a learner).
    EarlyLeader,
    /// Entries without data are skipped before their type is looked at: no joint configuration is
    /// ever left.
    SkipEmptyConfig,
    /// What raft hands out after persisting (`LightReady`) is dropped.
    DropLightReady,
    /// Hard state and entries are written in two steps instead of one.
    SplitWrite,
    /// After a restart raft is told the configuration that held before the snapshot.
    StaleConfig,
    /// After a restart entries are applied again on top of a state that has them.
    DoubleApply,
    /// A wiped disk comes back under its old raft id.
    ReuseRaftId,
    /// A joiner is sent a snapshot from before it was in the configuration.
    StaleSnapshot,
    /// Raft is never told what became of a snapshot.
    NoSnapshotReport,
    /// The leader removes itself without handing over first.
    LeaderRemovesItself,
    /// Answers go to whoever has waited longest.
    FifoAnswers,
    /// A proposal is acknowledged as soon as raft takes it.
    BelieveOk,
    /// A read is answered from what has been applied, without asking a majority.
    LocalRead,
    /// A retried read reuses the number of the first try.
    ReuseReadContext,
    /// Raft is ticked between `ready` and `advance`.
    TickInsideReady,
    /// After a pause all missed ticks are made up for at once.
    BurstTicks,
    /// A failed sync is tried again.
    RetrySync,
    /// Only senders in the current configuration are heard.
    StrictAdmit,
    /// Every message is believed.
    NoAdmit,
    /// That a change of voters is committed is told before it is on disk.
    ForgetChange,
    /// Mesh time is whatever the leader says.
    TimeGoesBack,
    /// A batch counts only if its number is above all numbers seen, so overtaken ones are lost.
    MaxInsteadOfWindow,
    /// A batch counts every time it is seen.
    NoWindow,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 24] = [
        Bug::AckBeforeSync,
        Bug::EarlyLeader,
        Bug::SkipEmptyConfig,
        Bug::DropLightReady,
        Bug::SplitWrite,
        Bug::StaleConfig,
        Bug::DoubleApply,
        Bug::ReuseRaftId,
        Bug::StaleSnapshot,
        Bug::NoSnapshotReport,
        Bug::LeaderRemovesItself,
        Bug::FifoAnswers,
        Bug::BelieveOk,
        Bug::LocalRead,
        Bug::ReuseReadContext,
        Bug::TickInsideReady,
        Bug::BurstTicks,
        Bug::RetrySync,
        Bug::StrictAdmit,
        Bug::NoAdmit,
        Bug::ForgetChange,
        Bug::TimeGoesBack,
        Bug::MaxInsteadOfWindow,
        Bug::NoWindow,
    ];
}

/// The bug that is planted in this node, if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Planted {
    #[cfg(feature = "planted")]
    bug: Option<Bug>,
}

impl Planted {
    /// Plants `bug`.
    #[cfg(feature = "planted")]
    pub fn bug(bug: Bug) -> Self {
        Self { bug: Some(bug) }
    }

    /// Whether `bug` is the one.
    #[inline]
    pub fn has(self, bug: Bug) -> bool {
        #[cfg(feature = "planted")]
        return self.bug == Some(bug);
        #[cfg(not(feature = "planted"))]
        {
            let _ = bug;
            false
        }
    }
}
