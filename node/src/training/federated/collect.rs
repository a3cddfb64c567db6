//! An open round: asks the aggregators what has come until it is known what to do.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use mesh_consensus::id::NodeId;
use tokio::time::{Instant, sleep, timeout};

use super::now;
use super::rounds::{Coordinator, Stop};
use super::view::Seen;
use crate::handle::Handle;
use crate::job::training::NoiseAt;
use crate::state::course::Open;
use crate::state::data::Note;
use crate::training::aggregate;
use crate::training::round::{self, Heard, Move, Sum};
use crate::training::wire::{Answer, Arrival, Ask};

/// An aggregator that does not answer for so long is replaced.
const SILENT: Duration = Duration::from_secs(3);
/// Likewise one that cannot be reached so often.
const MAX_ERRORS: u32 = 3;
/// Between two tries to ask one.
const AGAIN: Duration = Duration::from_millis(200);
/// Between two questions to one that answers at once although it has nothing new.
const BREATH: Duration = Duration::from_millis(20);
/// How often it is looked at again, whatever happens.
const TICK: Duration = Duration::from_secs(1);
/// If the first model takes longer, the others may try as well.
const FIRST_MS: u64 = 60_000;

/// What collecting has come to.
pub(super) enum Collected {
    /// The round closes.
    Sum(Sum),
    /// It never will.
    GiveUp(Note),
    /// Those who were selected cannot fill it: these may.
    Wider(BTreeSet<u32>),
    /// An aggregator does not answer.
    Silent(NodeId),
    /// The round is not what it was.
    Changed,
}

impl Coordinator<'_> {
    /// Waits until there is something to do about the open round.
    pub(super) async fn collect(&self, seen: &Seen, open: &Open) -> Result<Collected, Stop> {
        let handle = self.handle;
        let mut seen = seen.clone();
        let wanted = self.wanted(&seen, open);
        let mut heard = Heard { arrivals: vec![Vec::new(); open.aggregators.len()] };
        let ask = |shard: usize, known: usize| Ask::Arrived {
            job: self.job,
            epoch: self.epoch,
            round: open.round,
            shard: shard as u32,
            seen: known as u32,
        };
        let mut asks: FuturesUnordered<_> = open
            .aggregators
            .iter()
            .enumerate()
            .map(|(shard, node)| arrived(handle, shard, *node, ask(shard, 0)))
            .collect();
        let before = now(handle).since(open.since);
        let begun = Instant::now();
        let mut changed = handle.shown.jobs.clone();
        let mut away = self.away.clone();
        loop {
            let elapsed = (before + begun.elapsed()).as_millis() as u64;
            let active = seen.active(&away.borrow_and_update());
            let (present, counts) = (seen.present(), counting(&seen, &heard));
            let decided = round::decide(
                &seen.asked,
                &seen.course,
                &present,
                &active,
                &counts,
                wanted,
                elapsed,
            );
            let until = match decided {
                Move::Sum(sum) => return Ok(Collected::Sum(sum)),
                Move::GiveUp(why) => return Ok(Collected::GiveUp(why)),
                Move::Wait { until_ms } => until_ms,
            };
            let is_stuck = match open.round {
                0 if elapsed >= FIRST_MS => true,
                _ => {
                    elapsed >= round::GRACE_MS
                        && round::is_short(&seen.asked, &seen.course, &active, &counts)
                }
            };
            let more = seen.solvent(&active - &open.selected);
            if is_stuck && !more.is_empty() {
                return Ok(Collected::Wider(&open.selected | &more));
            }
            let wait = until.map_or(TICK, |at| {
                Duration::from_millis(at.saturating_sub(elapsed).max(1)).min(TICK)
            });
            tokio::select! {
                Some((shard, node, told)) = asks.next() => {
                    let Some(told) = told else { return Ok(Collected::Silent(node)) };
                    asks.push(arrived(handle, shard, node, ask(shard, told.len())));
                    if let Some(arrivals) = heard.arrivals.get_mut(shard) {
                        *arrivals = told;
                    }
                }
                _ = changed.changed() => {
                    changed.borrow_and_update();
                    seen = self.look().await?;
                    if seen.course.open.as_ref() != Some(open) {
                        return Ok(Collected::Changed);
                    }
                }
                _ = away.changed() => {}
                () = sleep(wait) => {}
            }
        }
    }
}

/// What of it can count: of the attempt that counts, and of those whose budget has room for it where that is charged later.
fn counting(seen: &Seen, heard: &Heard) -> Heard {
    let privacy = seen.asked.privacy.as_ref();
    // The first model costs nothing.
    let is_charged_later = seen.course.open.as_ref().is_none_or(|open| open.round > 0)
        && privacy.is_some_and(|privacy| privacy.at == NoiseAt::Aggregator);
    let everybody: BTreeSet<u32> = (0..).zip(&seen.seats).map(|(number, _)| number).collect();
    let able = if is_charged_later { seen.solvent(everybody) } else { everybody };
    let counts = |arrival: &&Arrival| {
        let seat = seen.seats.get(arrival.task as usize);
        seat.is_some_and(|seat| seat.fence == arrival.fence) && able.contains(&arrival.task)
    };
    let shard = |arrivals: &Vec<Arrival>| -> Vec<Arrival> {
        arrivals.iter().filter(counts).cloned().collect()
    };
    Heard { arrivals: heard.arrivals.iter().map(shard).collect() }
}

/// Asks what has come for a shard. `None` if whoever sums it does not answer.
async fn arrived(
    handle: &Handle,
    shard: usize,
    node: NodeId,
    ask: Ask,
) -> (usize, NodeId, Option<Vec<Arrival>>) {
    let known = match &ask {
        Ask::Arrived { seen, .. } => *seen as usize,
        _ => 0,
    };
    let begun = Instant::now();
    let mut errors = 0;
    loop {
        let asked = Instant::now();
        match timeout(SILENT, aggregate::ask(handle, node, ask.clone())).await {
            Ok(Ok(Answer::Arrived(arrivals))) => {
                if arrivals.len() <= known && asked.elapsed() < BREATH {
                    sleep(BREATH).await;
                }
                return (shard, node, Some(arrivals));
            }
            // It may not have heard yet that this round is open.
            Ok(Ok(answer)) => {
                tracing::debug!(node = %node.short(), ?answer, "an aggregator has no answer yet");
                if begun.elapsed() >= SILENT {
                    return (shard, node, None);
                }
            }
            Ok(Err(error)) => {
                tracing::debug!(node = %node.short(), %error, "an aggregator was not reached");
                errors += 1;
                if errors >= MAX_ERRORS {
                    return (shard, node, None);
                }
            }
            Err(_) => return (shard, node, None),
        }
        sleep(AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use mesh_consensus::id::Hash;

    use super::super::view::tests::{model, seen};
    use super::*;
    use crate::job::training::{Privacy, Real};
    use crate::state::course::Times;

    fn arrival(task: u32, fence: u64) -> Arrival {
        Arrival {
            task,
            fence,
            serial: 1,
            base: Some(2),
            update: Hash([task as u8; 32]),
            values: 100,
            examples: 1,
            metrics: BTreeMap::new(),
            evaluated: None,
            times: Times::default(),
            norm2: None,
        }
    }

    #[test]
    fn only_what_the_last_attempt_made_counts_and_only_within_the_budget() {
        let mut seen = seen();
        seen.course.model = Some(model(2, 1));
        let all =
            [(0, 7), (0, 6), (1, 7), (2, 8), (9, 7)].map(|(task, fence)| arrival(task, fence));
        let heard = Heard { arrivals: vec![all.into(), vec![arrival(1, 7)]] };
        let tasks = |heard: Heard| -> Vec<Vec<u32>> {
            let shard = |arrivals: &Vec<Arrival>| -> Vec<u32> {
                arrivals.iter().map(|one| one.task).collect()
            };
            heard.arrivals.iter().map(shard).collect()
        };
        assert_eq!(tasks(counting(&seen, &heard)), [vec![0, 1], vec![1]]);
        let real = |number| Real::new(number).unwrap();
        seen.asked.privacy = Some(Privacy {
            epsilon: real(8.0),
            delta: real(1e-3),
            noise: real(1.0),
            clip: real(1.0),
            at: NoiseAt::Aggregator,
        });
        seen.course.charged = BTreeMap::from([(0, 3)]);
        assert_eq!(tasks(counting(&seen, &heard)), [vec![1], vec![1]]);
        // What a party's own noise is in was paid for when it was drawn.
        if let Some(privacy) = &mut seen.asked.privacy {
            privacy.at = NoiseAt::Party;
        }
        assert_eq!(tasks(counting(&seen, &heard)), [vec![0, 1], vec![1]]);
    }
}
