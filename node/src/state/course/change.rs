//! What comes of what was asked about a training.
//!
//! Nothing here can fail: [`super::rules`] has checked it.

use std::collections::BTreeSet;
use std::time::Duration;

use mesh_consensus::id::NodeId;
use mesh_consensus::time::Time;

use super::{Counted, CountedAs, Course, CourseRound, MAX_POINTS, Open, Point, Record, Verdict};

/// When a lease ends that is given now.
pub(super) fn end_of(now: Time, ms: u32) -> Time {
    now.after(Duration::from_millis(u64::from(ms)))
}

impl Course {
    /// What the round has come to, and which is open now.
    pub(super) fn go_on(&mut self, now: Time, act: CourseRound) {
        let CourseRound { model, counted, metrics, open, .. } = act;
        self.renew(now);
        if let Some(model) = model {
            for one in counted {
                self.count(model.round, &one);
            }
            self.point(Point { round: model.round, at: now, metrics });
            self.model = Some(model);
        }
        self.open = open.map(|open| Open { since: now, ..open });
    }

    /// A round is charged to these tasks.
    pub(super) fn charge(&mut self, now: Time, tasks: &BTreeSet<u32>) {
        self.renew(now);
        for task in tasks {
            let rounds = self.charged.entry(*task).or_default();
            *rounds = rounds.saturating_add(1);
        }
    }

    /// It has ended.
    pub(super) fn close(&mut self, now: Time, verdict: Verdict) {
        self.renew(now);
        self.open = None;
        self.verdict = Some(verdict);
    }

    /// A member is gone, or has lost its disk: it coordinates nothing, and holds nothing.
    pub(in crate::state) fn forget(&mut self, node: NodeId) {
        self.lease = self.lease.filter(|lease| lease.node != node);
        if let Some(model) = &mut self.model {
            model.holders.remove(&node);
        }
    }

    /// The curve goes on.
    pub(in crate::state) fn point(&mut self, point: Point) {
        self.curve.push(point);
        thin(&mut self.curve);
    }

    /// Whoever coordinates was heard.
    pub(in crate::state) fn renew(&mut self, now: Time) {
        if let Some(lease) = &mut self.lease {
            lease.until = end_of(now, lease.ms);
        }
    }

    /// What came of a participant in a round.
    fn count(&mut self, round: u32, one: &Counted) {
        self.records.entry(one.task).or_default().count(round, one);
    }
}

impl Record {
    /// What came of it in a round. The first model is nobody's contribution: it is there to begin with, and costs no budget.
    pub fn count(&mut self, round: u32, one: &Counted) {
        self.times = one.times.unwrap_or(self.times);
        match &one.how {
            CountedAs::Taken { fence, serial, base, examples, .. } => {
                if round > 0 {
                    self.taken = self.taken.saturating_add(1);
                    self.examples = self.examples.saturating_add(*examples);
                }
                self.late = self.late.saturating_add(u32::from(base.saturating_add(1) < round));
                self.missed_in_a_row = 0;
                self.last = Some((*fence, *serial));
                self.why = None;
            }
            CountedAs::Refused { fence, serial, why } => {
                self.refused = self.refused.saturating_add(1);
                self.missed_in_a_row = 0;
                self.last = self.last.max(Some((*fence, *serial)));
                self.why = Some(why.clone());
            }
            CountedAs::Missed => {
                self.missed = self.missed.saturating_add(1);
                self.missed_in_a_row = self.missed_in_a_row.saturating_add(1);
            }
        }
    }
}

/// Of too many points every second one goes; the newest stays.
fn thin(curve: &mut Vec<Point>) {
    if curve.len() > MAX_POINTS {
        let mut after = curve.len();
        curve.retain(|_| {
            after -= 1;
            after.is_multiple_of(2)
        });
    }
}
