//! The next round: who takes part in it, and who sums it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use mesh_consensus::id::NodeId;
use mesh_consensus::time::Time;

use super::view::Seen;
use crate::job::training::{Select, Strategy};
use crate::state::course::{Model, Open, Record};
use crate::training::straggler::{self, Choice};

/// Who is there, as the coordinator knows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct There<'a> {
    /// The coordinator.
    pub(super) me: NodeId,
    /// Nodes that do not answer.
    pub(super) away: &'a BTreeSet<NodeId>,
    /// Nodes that may sum, and answer.
    pub(super) awake: &'a BTreeSet<NodeId>,
}

/// The round that follows `model`, and how many it waits for. `records` are what they will be when it is opened. `None` if nobody
/// can take part in it, or nobody can sum it.
pub(super) fn next(
    seen: &Seen,
    there: There<'_>,
    model: Option<&Model>,
    records: &BTreeMap<u32, Record>,
    draw: &mut dyn FnMut(usize) -> usize,
) -> Option<(Open, usize)> {
    let round = model.map_or(0, |model| model.round.saturating_add(1));
    let needed = if round == 0 { 1 } else { seen.asked.min_parties as usize };
    let active = seen.active(there.away);
    // The first model is made without the data, and costs nothing.
    let able = if round == 0 { active } else { seen.solvent(active) };
    let able = match able.len() < needed && round > 0 {
        // Those who do not run may come to.
        true => seen.solvent(seen.present()),
        false => able,
    };
    if able.is_empty() {
        return None;
    }
    let Choice { mut selected, wanted } =
        straggler::choose(&seen.asked.select, &able, records, round, draw);
    for task in able {
        if selected.len() >= needed {
            break;
        }
        selected.insert(task);
    }
    let wanted = wanted.max(needed).min(selected.len());
    // Whoever comes back meanwhile may still take part, and is not waited for. Budgets are charged for all who are selected.
    if round > 0 && seen.asked.select == Select::All && seen.asked.privacy.is_none() {
        selected.extend(seen.present());
    }
    let shards = model.map_or(1, |model| model.weights.len());
    let before: &[NodeId] = match &seen.course.open {
        Some(open) => &open.aggregators,
        None => &[],
    };
    let aggregators = assign(shards, before, there)?;
    // With a buffer nobody is late.
    let usual = match seen.asked.strategy {
        Strategy::FedBuff { .. } => None,
        _ => straggler::deadline_ms(records, &selected),
    };
    let deadline_ms = seen.asked.deadline_ms.or(usual);
    Some((Open { round, selected, aggregators, since: Time(0), deadline_ms }, wanted))
}

/// Who sums which shard: whoever did so before, if it answers; else the one that has least to do, the coordinator first.
pub(super) fn assign(shards: usize, before: &[NodeId], there: There<'_>) -> Option<Vec<NodeId>> {
    let kept = |shard: usize| before.get(shard).copied().filter(|node| there.awake.contains(node));
    let mut shares: BTreeMap<NodeId, usize> = there.awake.iter().map(|node| (*node, 0)).collect();
    for node in (0..shards).filter_map(kept) {
        *shares.entry(node).or_default() += 1;
    }
    let mut assigned = Vec::new();
    for shard in 0..shards {
        let node = match kept(shard) {
            Some(node) => node,
            None => {
                let least = shares.iter().min_by_key(|(node, has)| (**has, **node != there.me));
                let node = least.map(|(node, _)| *node)?;
                *shares.entry(node).or_default() += 1;
                node
            }
        };
        assigned.push(node);
    }
    Some(assigned)
}

/// Who may hold a model beside the coordinator, the best first: those who hold the last one, then those who sum, then those who
/// take part.
pub(super) fn seconds(seen: &Seen, there: There<'_>) -> Vec<NodeId> {
    let holders = seen.course.model.iter().flat_map(|model| &model.holders).copied();
    let seats = seen.seats.iter().filter_map(|seat| seat.node);
    let able: BTreeSet<NodeId> = there.awake.iter().copied().chain(seats.clone()).collect();
    let is_fit =
        |node: &NodeId| *node != there.me && able.contains(node) && !there.away.contains(node);
    let mut seconds = Vec::new();
    for node in holders.chain(there.awake.iter().copied()).chain(seats).filter(is_fit) {
        if !seconds.contains(&node) {
            seconds.push(node);
        }
    }
    seconds
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::{model, node, seen};
    use super::*;
    use crate::job::training::Real;

    fn set(nodes: &[u8]) -> BTreeSet<NodeId> {
        nodes.iter().map(|n| node(*n)).collect()
    }

    fn next_of(seen: &Seen, away: &[u8], awake: &[u8]) -> Option<(Open, usize)> {
        let (away, awake) = (set(away), set(awake));
        let there = There { me: node(1), away: &away, awake: &awake };
        let model = seen.course.model.as_ref();
        next(seen, there, model, &seen.course.records, &mut |_: usize| 0)
    }

    #[test]
    fn those_who_run_take_part() {
        let mut seen = seen();
        seen.course.model = Some(model(4, 2));
        let (open, wanted) = next_of(&seen, &[], &[1, 2]).unwrap();
        assert_eq!((open.round, open.selected, wanted), (5, BTreeSet::from([0, 1, 2]), 3));
        assert_eq!(open.aggregators, [node(1), node(2)]);
        let (open, wanted) = next_of(&seen, &[3], &[1, 2]).unwrap();
        assert_eq!((open.selected, wanted), (BTreeSet::from([0, 1, 2]), 2), "it may come back");
        // Too few of them: then all that may come.
        let (open, _) = next_of(&seen, &[2, 3], &[1, 2]).unwrap();
        assert_eq!(open.selected, BTreeSet::from([0, 1, 2]));
        assert!(next_of(&seen, &[], &[]).is_none(), "nobody can sum");
    }

    #[test]
    fn the_first_round_waits_for_somebody_who_runs() {
        let mut seen = seen();
        let (open, wanted) = next_of(&seen, &[], &[1, 2]).unwrap();
        assert_eq!((open.round, wanted, open.aggregators), (0, 1, vec![node(1)]));
        assert!(!open.selected.is_empty());
        seen.seats.iter_mut().for_each(|seat| seat.runs = false);
        assert!(next_of(&seen, &[], &[1, 2]).is_none());
    }

    #[test]
    fn no_fewer_are_selected_than_a_round_needs() {
        let mut seen = seen();
        seen.asked.select = Select::Random { count: 1 };
        seen.asked.min_parties = 3;
        seen.course.model = Some(model(4, 1));
        let (open, wanted) = next_of(&seen, &[], &[1]).unwrap();
        assert_eq!((open.selected.len(), wanted), (3, 3));
    }

    #[test]
    fn a_job_may_say_how_long_to_wait_and_a_buffer_waits_for_nobody() {
        let mut seen = seen();
        seen.course.model = Some(model(4, 1));
        for task in 0..3 {
            let mut record = Record::default();
            record.times.compute_ms = 20_000;
            seen.course.records.insert(task, record);
        }
        let deadline = |seen: &Seen| next_of(seen, &[], &[1]).unwrap().0.deadline_ms;
        assert!(deadline(&seen).is_some_and(|ms| ms >= 20_000));
        seen.asked.strategy =
            Strategy::FedBuff { buffer: 2, rate: Real::new(1.0).unwrap(), max_staleness: 3 };
        assert_eq!(deadline(&seen), None);
        seen.asked.deadline_ms = Some(77);
        assert_eq!(deadline(&seen), Some(77));
    }

    #[test]
    fn shards_stay_where_they_are_and_the_rest_is_spread() {
        let (away, awake) = (set(&[]), set(&[1, 2, 3]));
        let there = There { me: node(3), away: &away, awake: &awake };
        let of = |shards, before: &[u8]| -> Vec<u8> {
            let before: Vec<NodeId> = before.iter().map(|n| node(*n)).collect();
            assign(shards, &before, there).unwrap().iter().map(|node| node.0[0]).collect()
        };
        assert_eq!(of(1, &[]), [3], "the coordinator first");
        assert_eq!(of(4, &[]), [3, 1, 2, 3]);
        assert_eq!(of(4, &[2, 2, 9, 9]), [2, 2, 3, 1]);
        assert_eq!(of(1, &[1, 1]), [1]);
        let nobody = set(&[]);
        assert_eq!(assign(1, &[], There { awake: &nobody, ..there }), None);
    }

    #[test]
    fn the_second_copy_is_best_where_the_last_one_is() {
        let mut seen = seen();
        seen.summers = set(&[1, 2, 4]);
        seen.course.model = Some(model(4, 1));
        let (away, awake) = (set(&[]), set(&[1, 2, 4]));
        let there = There { me: node(1), away: &away, awake: &awake };
        assert_eq!(seconds(&seen, there), [node(2), node(4), node(3)]);
        if let Some(model) = &mut seen.course.model {
            model.holders = set(&[1, 4, 8]);
        }
        assert_eq!(seconds(&seen, there), [node(4), node(2), node(3)]);
        let away = set(&[3, 4]);
        assert_eq!(seconds(&seen, There { away: &away, ..there }), [node(2)]);
    }
}
