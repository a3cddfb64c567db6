//! What the state says of a job that trains, as far as a coordinator has to know it; and what follows from that alone.

use std::collections::{BTreeMap, BTreeSet};

use mesh_consensus::id::{JobId, NodeId, PartyId, VersionId};
use mesh_consensus::time::Time;

use crate::job::training::{Federated, NoiseAt, Training};
use crate::state::State;
use crate::state::course::{Course, Tally};
use crate::state::jobs::{Job, Phase, Task};
use crate::training::privacy::Spend;

/// A training that goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) job: JobId,
    /// Whose the job is, and so the model that it makes.
    pub(super) party: PartyId,
    pub(super) submitted: Time,
    pub(super) asked: Federated,
    /// The code that it runs, for the model's lineage.
    pub(super) code: Option<VersionId>,
    /// Without its curve, which is long.
    pub(super) course: Course,
    /// By number.
    pub(super) seats: Vec<Seat>,
    /// Nodes of the parties that may sum.
    pub(super) summers: BTreeSet<NodeId>,
    /// Nodes of the job's own party.
    pub(super) own: BTreeSet<NodeId>,
    /// How many members there are.
    pub(super) members: usize,
    /// What all trainings ever have charged to the budgets that a task spends from; empty where the job spends none.
    pub(super) spent: BTreeMap<u32, Vec<Tally>>,
}

/// A task, as a coordinator sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seat {
    /// Where its attempt is, if it has one.
    pub(super) node: Option<NodeId>,
    /// The fence of its last attempt.
    pub(super) fence: u64,
    /// Whether that runs, and may go on.
    pub(super) runs: bool,
    /// Whether it is over for good.
    pub(super) ended: bool,
}

impl Seat {
    fn of(task: &Task) -> Self {
        let given = task.given();
        Self {
            node: given.map(|given| given.node),
            fence: task.fence,
            runs: given
                .is_some_and(|given| given.phase == Phase::Running && given.ending.is_none()),
            ended: task.end().is_some(),
        }
    }
}

impl Seen {
    /// All trainings that go on.
    pub(super) fn all(state: &State) -> Vec<Seen> {
        state.live_jobs().filter_map(|(id, job)| Self::of_job(state, id, job)).collect()
    }

    /// One of them. `None` if it is over, or about to be.
    pub(super) fn of(state: &State, id: JobId) -> Option<Seen> {
        Self::of_job(state, id, state.job(id)?)
    }

    fn of_job(state: &State, id: JobId, job: &Job) -> Option<Seen> {
        let Some(Training::Federated(asked)) = &job.spec.training else { return None };
        let course = job.course.as_ref()?;
        if course.verdict.is_some() || job.over.is_some() || job.stopping.is_some() {
            return None;
        }
        let parties = state.parties().iter();
        let summing: BTreeSet<PartyId> = parties
            .filter(|(_, party)| asked.aggregators.contains(&party.name))
            .map(|(id, _)| *id)
            .collect();
        let members = || state.members().iter().filter(|(_, member)| !member.leaving);
        let nodes = |of: &dyn Fn(PartyId) -> bool| -> BTreeSet<NodeId> {
            members().filter(|(_, member)| of(member.party)).map(|(node, _)| *node).collect()
        };
        Some(Seen {
            job: id,
            party: job.party,
            submitted: job.submitted.time,
            asked: asked.clone(),
            code: job.spec.code,
            course: Course {
                lease: course.lease,
                model: course.model.clone(),
                open: course.open.clone(),
                records: course.records.clone(),
                curve: Vec::new(),
                verdict: None,
                charged: course.charged.clone(),
            },
            seats: job.tasks.iter().map(Seat::of).collect(),
            summers: nodes(&|party: PartyId| summing.contains(&party)),
            own: nodes(&|party: PartyId| party == job.party),
            members: members().count(),
            spent: match asked.privacy {
                Some(_) => {
                    let tasks = 0..u32::try_from(job.tasks.len()).unwrap_or(u32::MAX);
                    tasks.map(|task| (task, state.tallies(job, task))).collect()
                }
                None => BTreeMap::new(),
            },
        })
    }

    /// The tasks that have not ended for good.
    pub(super) fn present(&self) -> BTreeSet<u32> {
        self.tasks(|seat| !seat.ended)
    }

    /// The tasks whose attempt runs on a node that answers.
    pub(super) fn active(&self, away: &BTreeSet<NodeId>) -> BTreeSet<u32> {
        self.tasks(|seat| seat.runs && seat.node.is_some_and(|node| !away.contains(&node)))
    }

    fn tasks(&self, which: impl Fn(&Seat) -> bool) -> BTreeSet<u32> {
        let tasks = (0..).zip(&self.seats).filter(|(_, seat)| which(seat));
        tasks.map(|(number, _)| number).collect()
    }

    /// Those of them whose budget has room for a round more. What other jobs have spent of the same data counts.
    pub(super) fn solvent(&self, mut tasks: BTreeSet<u32>) -> BTreeSet<u32> {
        if let Some(privacy) = &self.asked.privacy {
            let noise = privacy.noise.get();
            // A quorum is no draw: everybody counts as taking part in every round.
            let next = Spend::rounds(noise, 1.0, 1);
            let fits = |before: &Spend| {
                before.plus(&next).epsilon(privacy.delta.get()).0 <= privacy.epsilon.get()
            };
            tasks.retain(|task| {
                let own = self.course.charged.get(task).copied().unwrap_or(0);
                let tallies = self.spent.get(task).into_iter().flatten();
                fits(&Spend::rounds(noise, 1.0, own)) && tallies.map(all_of).all(|all| fits(&all))
            });
        }
        tasks
    }

    /// Whether noise is drawn for a round before it is summed, and so charged when it is opened; else it is charged before the sum.
    pub(super) fn is_charged_first(&self) -> bool {
        self.asked.privacy.as_ref().is_some_and(|privacy| privacy.at == NoiseAt::Party)
    }

    /// Whether all rounds are in the model.
    pub(super) fn is_complete(&self) -> bool {
        self.course.model.as_ref().is_some_and(|model| model.round >= self.asked.rounds)
    }

    /// Whether there is no round to come, so that only the end is missing.
    pub(super) fn is_at_end(&self) -> bool {
        if self.course.model.is_none() || self.is_complete() {
            return self.is_complete();
        }
        // What is open was paid for already where it is charged first.
        let is_paid = self.is_charged_first() && self.course.open.is_some();
        let needed = self.asked.min_parties as usize;
        let present = self.present();
        // Too few participants is another end than too small a budget.
        !is_paid && present.len() >= needed && self.solvent(present).len() < needed
    }

    /// Whether there is anything for a coordinator to do. While all of its tasks wait for a place there is not.
    pub(super) fn is_due(&self) -> bool {
        self.seats.iter().any(|seat| seat.node.is_some())
            || self.present().len() < self.asked.min_parties as usize
            || self.is_at_end()
    }
}

/// What a tally comes to.
fn all_of(tally: &Tally) -> Spend {
    let spends =
        tally.iter().map(|(noise, rounds)| Spend::rounds(f64::from_bits(*noise), 1.0, *rounds));
    spends.fold(Spend::none(), |all, one| all.plus(&one))
}

#[cfg(test)]
pub(super) mod tests {
    use mesh_consensus::id::Hash;

    use super::*;
    use crate::job::training::{Privacy, Real, Select, Strategy, Wire};
    use crate::state::course::{Model, Open, Piece};

    pub(in crate::training::federated) fn node(n: u8) -> NodeId {
        NodeId([n; 32])
    }

    fn real(number: f64) -> Real {
        Real::new(number).unwrap()
    }

    /// A training of three, all of which run: on nodes 1 to 3. Nodes 1 and 2 may sum; node 1 is the job's own.
    pub(in crate::training::federated) fn seen() -> Seen {
        let asked = Federated {
            rounds: 10,
            strategy: Strategy::FedAvg { rate: real(1.0) },
            min_parties: 2,
            deadline_ms: None,
            aggregators: vec!["lab".parse().unwrap()],
            wire: Wire::F32,
            select: Select::All,
            privacy: None,
            start: None,
            model: "digits".parse().unwrap(),
        };
        let seat = |n: u8| Seat { node: Some(node(n)), fence: 7, runs: true, ended: false };
        Seen {
            job: JobId([5; 16]),
            party: PartyId([1; 32]),
            submitted: Time(1000),
            asked,
            code: None,
            course: Course::default(),
            seats: vec![seat(1), seat(2), seat(3)],
            summers: BTreeSet::from([node(1), node(2)]),
            own: BTreeSet::from([node(1)]),
            members: 3,
            spent: BTreeMap::new(),
        }
    }

    pub(in crate::training::federated) fn model(round: u32, shards: usize) -> Model {
        let piece = |n: usize| Piece { hash: Hash([n as u8; 32]), bytes: 400 };
        Model {
            round,
            layout: piece(99),
            weights: (0..shards).map(piece).collect(),
            optimiser: Vec::new(),
            holders: BTreeSet::from([node(1), node(2)]),
        }
    }

    fn private(at: NoiseAt) -> Seen {
        let mut seen = seen();
        // As the note says: three rounds.
        seen.asked.privacy = Some(Privacy {
            epsilon: real(8.0),
            delta: real(1e-3),
            noise: real(1.0),
            clip: real(1.0),
            at,
        });
        seen.course.model = Some(model(2, 1));
        seen
    }

    #[test]
    fn who_runs_on_a_node_that_does_not_answer_is_not_there() {
        let mut seen = seen();
        seen.seats[0].runs = false;
        assert_eq!(seen.active(&BTreeSet::from([node(3)])), BTreeSet::from([1]));
        seen.seats[2].ended = true;
        assert_eq!(seen.present(), BTreeSet::from([0, 1]));
    }

    #[test]
    fn after_the_last_round_only_the_end_is_missing() {
        let mut seen = seen();
        assert!(!seen.is_at_end() && seen.is_due());
        seen.course.model = Some(model(9, 1));
        assert!(!seen.is_at_end());
        seen.course.model = Some(model(10, 1));
        assert!(seen.is_at_end() && seen.is_complete());
    }

    #[test]
    fn while_nobody_has_a_place_there_is_nothing_to_do() {
        let mut seen = seen();
        for seat in &mut seen.seats {
            *seat = Seat { node: None, runs: false, ..*seat };
        }
        assert!(!seen.is_due());
        seen.seats[0].ended = true;
        assert!(!seen.is_due());
        seen.seats[1].ended = true;
        assert!(seen.is_due(), "too few are left");
    }

    #[test]
    fn when_the_budget_of_too_many_is_spent_only_the_end_is_missing() {
        let mut seen = private(NoiseAt::Aggregator);
        seen.course.charged = BTreeMap::from([(0, 2), (1, 3), (2, 2)]);
        assert_eq!(seen.solvent(seen.present()), BTreeSet::from([0, 2]));
        assert!(!seen.is_at_end());
        seen.course.charged.insert(0, 3);
        assert!(seen.is_at_end() && !seen.is_complete());
        // Too few participants is another matter.
        seen.seats[0].ended = true;
        seen.seats[1].ended = true;
        assert!(!seen.is_at_end());
    }

    #[test]
    fn what_other_jobs_have_spent_of_the_same_data_is_gone() {
        let mut seen = private(NoiseAt::Aggregator);
        let tally = |noise: f64, rounds: u32| Tally::from([(noise.to_bits(), rounds)]);
        // Three rounds with noise 1 are all that there is; one with much more noise costs little.
        seen.spent = BTreeMap::from([
            (0, vec![tally(1.0, 2)]),
            (1, vec![tally(50.0, 1), tally(1.0, 3)]),
            (2, vec![tally(50.0, 1)]),
        ]);
        assert_eq!(seen.solvent(seen.present()), BTreeSet::from([0, 2]));
        let both = Tally::from([(1.0_f64.to_bits(), 2), (0.9_f64.to_bits(), 1)]);
        seen.spent.insert(0, vec![both]);
        assert_eq!(seen.solvent(seen.present()), BTreeSet::from([2]));
    }

    #[test]
    fn a_round_that_was_paid_for_is_done() {
        let mut seen = private(NoiseAt::Party);
        seen.course.charged = BTreeMap::from([(0, 3), (1, 3), (2, 3)]);
        assert!(seen.is_at_end());
        seen.course.open = Some(Open {
            round: 3,
            selected: seen.present(),
            aggregators: vec![node(1)],
            since: Time(0),
            deadline_ms: None,
        });
        assert!(!seen.is_at_end());
    }
}
