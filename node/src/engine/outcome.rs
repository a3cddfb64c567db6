//! What follows from a turn: answers, bookmarks, changes of mode, and what the rest of the process sees.

use std::sync::Arc;
use std::time::Duration;

use mesh_consensus::admit::{MAX_LEAP, Refused as NotHeard};
use mesh_consensus::bookmark::Bookmark;
use mesh_consensus::core::Role;
use mesh_consensus::driver::{Event, Stop, Turn};
use mesh_consensus::id::NodeId;
use mesh_consensus::log::{Entry, Snapshot};
use mesh_consensus::replica::{Applied, Fact, Rejected, Verdict};
use mesh_consensus::time::Time;
use mesh_transport::net::Net;

use super::mode::Mode;
use super::{
    Answered, BOOKMARK_AGAIN, BOOKMARK_EVERY, CLOCK_AHEAD, Checkpoint, Engine, EngineError,
    LEADER_UNHEARD, LEADER_UNHEARD_TICKS, LOOK_EVERY, LOST_DATA, LOST_DATA_EVERY, MAX_HISTORY,
    Posted, Roster, SEEN_LATELY, Wires,
};
use crate::clock;
use crate::handle::{Happened, Part, Pulse};
use crate::pace;
use crate::wire::Note;

impl Engine {
    /// Lets the driver take the events, if there is one, and does what follows.
    pub(super) fn turn(&mut self, mut events: Vec<Event>) -> Result<(), EngineError> {
        if let Mode::Seated(driver) = &mut self.mode {
            let now = clock::steady();
            if now.duration_since(self.looked) >= LOOK_EVERY {
                self.looked = now;
                self.floor.look(trip(self.net.as_ref(), &self.roster.borrow()));
                events.extend(self.voters.look(driver, &self.parts.is_alive));
            }
            let mut wires = Wires(self.net.as_ref());
            let now = dated(clock::now(), self.shown.clock());
            match driver.turn(now, events, &mut wires) {
                Ok(turn) => self.on_turn(turn)?,
                Err(Stop::Halt(halt)) => return Err(halt.into()),
                Err(Stop::Log(error)) => self.change(|mode, _| Ok(mode.fail(&error)))?,
            }
        } else {
            self.lose_reads();
            self.sit_down_again(&events)?;
            if matches!(self.mode, Mode::Broken { until, .. } if until <= clock::steady()) {
                self.change(|mode, parts| mode.mend(parts))?;
            }
            if let Err(error) = self.mode.persist(false) {
                self.change(|mode, _| Ok(mode.fail(&error)))?;
            }
        }
        self.bookmark();
        self.look_for_forgotten_words()?;
        self.look_for_fork()
    }

    /// Stops this node if it leads, and somebody shows that this node has vouched for a member of whom its state knows
    /// nothing: it signs that only after it has applied the admission. So its directory is an older copy that somebody
    /// has put back, and the mesh has gone on without what this node would decide from here.
    ///
    /// (One that follows is told by its leader: see [`note_lost_data`](Self::note_lost_data).)
    pub(super) fn look_for_forgotten_words(&self) -> Result<(), EngineError> {
        let Mode::Seated(driver) = &self.mode else { return Ok(()) };
        let (status, replica) = (driver.status(), driver.replica());
        // From when all of its log is applied, its state is all that it has.
        if status.role != Role::Leader || replica.index() < status.last_index {
            return Ok(());
        }
        let (state, me) = (replica.machine(), self.parts.key.id());
        let vouched = self.shown.vouched.lock().unwrap_or_else(|held| held.into_inner());
        let forgotten = vouched.iter().any(|(node, by)| {
            // The last is a member; it has vouched for the one before.
            let subject = by.iter().rev().nth(1).unwrap_or(node);
            let is_known =
                state.members().contains_key(subject) || state.removed().contains(subject);
            by.last() == Some(&me) && !is_known
        });
        if forgotten { Err(EngineError::LostData) } else { Ok(()) }
    }

    /// Stops this node, loudly, if a majority of the voters has signed what contradicts it: then it, or they,
    /// were lied to, and going on would make it worse.
    pub(super) fn look_for_fork(&mut self) -> Result<(), EngineError> {
        if !self.marks.has_changed().unwrap_or(false) {
            return Ok(());
        }
        let marks = self.marks.borrow_and_update().clone();
        let voters = self.roster.borrow().voters.clone();
        for Posted { mark, .. } in marks.values() {
            // One that does not count (its voter has lost its seat, say) counts for no fork either.
            let _ = self.tally.take(mark.clone(), &voters);
        }
        let first = self.history.front().map_or(0, |(index, _)| *index);
        let history_at = |index: u64| {
            let at = usize::try_from(index.checked_sub(first)?).ok()?;
            self.history.get(at).map(|(_, history)| *history)
        };
        match self.tally.forked(&voters, history_at) {
            Some(forked) => Err(EngineError::Forked(forked)),
            None => Ok(()),
        }
    }

    /// Nobody here can answer a read but a driver: whoever waits for one is told to ask again.
    fn lose_reads(&mut self) {
        for reply in std::mem::take(&mut self.reads).into_values() {
            let _ = reply.send(None);
        }
    }

    fn on_turn(&mut self, turn: Turn) -> Result<(), EngineError> {
        let Turn { applied, answers, busy, reads, lost_reads, installed, refused, .. } = turn;
        if let Some(halt) = turn.too_old {
            return Err(halt.into());
        }
        if let Some(snapshot) = turn.checkpoint {
            self.keep_checkpoint(snapshot);
        }
        for one in &applied {
            self.remember(one);
        }
        if installed.is_some() {
            self.history.clear();
            self.remember_start();
        }
        for answer in answers {
            self.answer((answer.author, answer.sequence), &answer.result);
        }
        for key in busy {
            // The author asks again; to give up is its business.
            tracing::debug!(sequence = key.1, "too many batches wait");
        }
        let index = self.mode.replica().index();
        for token in reads {
            if let Some(reply) = self.reads.remove(&token) {
                let _ = reply.send(Some(index));
            }
        }
        for token in lost_reads {
            if let Some(reply) = self.reads.remove(&token) {
                let _ = reply.send(None);
            }
        }
        self.note_refused(&refused)?;
        self.note_freshness();
        if !self.mode.replica().config().contains(self.parts.identity.raft_id) {
            self.change(|mode, _| Ok(mode.leave_seat(false)))?;
        }
        Ok(())
    }

    fn note_refused(&mut self, refused: &[(NodeId, NotHeard)]) -> Result<(), EngineError> {
        for (from, why) in refused {
            tracing::debug!(from = %from.short(), %why, "a message was not heard");
            if *why == NotHeard::LostData {
                self.note_lost_data(*from);
            }
        }
        let proven = self.lost_data.is_some_and(|(_, times, _)| times >= LOST_DATA);
        if proven { Err(EngineError::LostData) } else { Ok(()) }
    }

    /// Only the leader knows what we acknowledged. While we follow one, nobody else's word counts:
    /// otherwise any member could stop us for good.
    fn note_lost_data(&mut self, from: NodeId) {
        let now = clock::steady();
        if self.mode.pulse(None, self.settled).leader.is_some_and(|leader| leader != from) {
            return;
        }
        let times = match self.lost_data {
            Some((who, _, at)) if who == from && now.duration_since(at) < LOST_DATA_EVERY => return,
            Some((who, times, _)) if who == from => times + 1,
            _ => 1,
        };
        self.lost_data = Some((from, times, now));
    }

    /// A follower is up to date while it hears a leader; a leader, while a quorum hears it.
    fn note_freshness(&mut self) {
        let Mode::Seated(driver) = &self.mode else { return };
        let status = driver.status();
        let leads = status.role == Role::Leader;
        if leads || (status.leader.is_some() && status.patience.0 == 0) {
            let now = clock::steady();
            self.fresh = Some(now);
            let own = |leader| driver.replica().config().contains(leader);
            if leads || status.leader.is_some_and(own) {
                self.settled = now;
            }
        }
    }

    pub(super) fn remember(&mut self, applied: &Applied) {
        if self.history.back().is_some_and(|(last, _)| *last + 1 != applied.index) {
            // A log that was opened again may be behind what was applied before it failed.
            self.history.clear();
        }
        if self.history.len() >= MAX_HISTORY {
            self.history.pop_front();
        }
        self.history.push_back((applied.index, applied.history));
        if let Fact::Batch { author, sequence, verdict } = &applied.fact {
            let result = match verdict {
                Verdict::Counted(receipt) | Verdict::Repeated(receipt) => Ok(receipt.clone()),
                // Somebody made it up in the author's name: it says nothing about the real one.
                Verdict::Rejected(Rejected::Batch(_)) => return,
                Verdict::Rejected(rejected) => Err(rejected.clone()),
            };
            self.answer((*author, *sequence), &result);
        }
    }

    /// The history begins where the replica is.
    pub(super) fn remember_start(&mut self) {
        let replica = self.mode.replica();
        if replica.index() > 0 {
            self.history.push_back((replica.index(), replica.history()));
        }
    }

    fn keep_checkpoint(&mut self, snapshot: Snapshot) {
        let checkpoint = Checkpoint::of(snapshot);
        let mut held = self.shown.checkpoint.lock().unwrap_or_else(|held| held.into_inner());
        *held = Some(checkpoint);
    }

    fn answer(&mut self, key: (NodeId, u64), result: &Answered) {
        for reply in self.waiting.remove(&key).into_iter().flatten() {
            // Whoever asked may have gone.
            let _ = reply.send(result.clone());
        }
    }

    /// Confirmed entries, for a watcher. What it has already is skipped; a gap is left to the feed.
    pub(super) fn confirmed(&mut self, entries: &[Entry]) -> Result<(), EngineError> {
        for entry in entries {
            let Mode::Watching(watching) = &mut self.mode else { return Ok(()) };
            if entry.index != watching.replica.index() + 1 {
                continue;
            }
            let applied = watching.replica.apply(entry)?;
            self.remember(&applied);
            if matches!(applied.fact, Fact::Config(_)) {
                self.change(|mode, parts| mode.take_seat(parts))?;
            }
        }
        Ok(())
    }

    /// A confirmed snapshot, for a watcher. One that is no news is left alone: an index never goes back.
    pub(super) fn restore(&mut self, snapshot: &Snapshot) -> Result<(), EngineError> {
        let Mode::Watching(watching) = &mut self.mode else { return Ok(()) };
        if snapshot.index <= watching.replica.index() {
            return Ok(());
        }
        watching.restore(snapshot)?;
        self.history.clear();
        self.remember_start();
        let answers: Vec<((NodeId, u64), Answered)> = (self.waiting.keys())
            .filter_map(|key| {
                let receipt = self.mode.replica().receipt(key.0, key.1)?;
                Some((*key, Ok(receipt.clone())))
            })
            .collect();
        for (key, result) in answers {
            self.answer(key, &result);
        }
        self.change(|mode, parts| mode.take_seat(parts))
    }

    /// Those who vote have gone on without us. Our log and our vote stay on disk.
    pub(super) fn give_up_seat(&mut self) {
        tracing::warn!("the others went on without this seat: following from afar");
        let _ = self.change(|mode, _| Ok(mode.leave_seat(true)));
    }

    /// Moves from one mode to the next.
    fn change(
        &mut self,
        next: impl FnOnce(Mode, &super::Parts) -> Result<Mode, EngineError>,
    ) -> Result<(), EngineError> {
        let parked = Mode::broken(self.mode.replica());
        let mode = std::mem::replace(&mut self.mode, parked);
        match next(mode, &self.parts) {
            Ok(mode) => self.mode = mode,
            // A disk that is full or away may come back: the log is opened again in a while.
            Err(EngineError::Log(error)) => {
                self.mode = Mode::broken(self.mode.replica()).fail(&error);
            }
            Err(error) => return Err(error),
        }
        if !matches!(self.mode, Mode::Seated(_)) {
            // The reads that a driver was asked for have gone with it.
            self.lose_reads();
        }
        Ok(())
    }

    /// Takes a seat that was given up too soon. Raft speaks only to those who sit, and whoever is up to
    /// date knows whether that is still so. If nobody has given a sign of life for a while, those who speak
    /// may be short of this very vote; the log and the vote of the seat are still here, so it is safe.
    fn sit_down_again(&mut self, events: &[Event]) -> Result<(), EngineError> {
        let spoken_to = events.iter().any(|event| match event {
            Event::Received { from, .. } => self.roster.borrow().seated.contains(from),
            _ => false,
        });
        let knows = self.shown.is_fresh(SEEN_LATELY) || !self.shown.is_fresh(LEADER_UNHEARD);
        if spoken_to && knows && matches!(self.mode, Mode::Watching(_)) {
            self.change(|mode, parts| mode.take_seat(parts))?;
        }
        Ok(())
    }

    /// Signs where this voter is, now and then.
    fn bookmark(&mut self) {
        let pulse = self.mode.pulse(None, self.settled);
        if pulse.part != Part::Voter || pulse.index == 0 {
            return;
        }
        let now = clock::steady();
        if self.fresh.is_none_or(|at| now.duration_since(at) > BOOKMARK_AGAIN) {
            // Who hears no leader has nothing to vouch for.
            return;
        }
        let due = match self.marked {
            None => true,
            Some((at, index)) => {
                let since = now.duration_since(at);
                since >= BOOKMARK_AGAIN || (index != pulse.index && since >= BOOKMARK_EVERY)
            }
        };
        if !due {
            return;
        }
        self.marked = Some((now, pulse.index));
        // After a restart, too, as long as the clock is not set back meanwhile; until it has caught up, a
        // new index speaks for us.
        self.beat = (self.beat + 1).max(clock::now().0);
        let checkpoint = {
            let held = self.shown.checkpoint.lock().unwrap_or_else(|held| held.into_inner());
            held.as_ref().map(|held| (held.snapshot.index, held.digest))
        };
        let identity = self.parts.identity;
        let bookmark = Bookmark::sign(
            self.parts.key.signing(),
            identity.mesh,
            identity.epoch,
            pulse.index,
            pulse.history,
            checkpoint,
            self.beat,
        );
        if let (Some(net), Ok(bytes)) =
            (&self.net, mesh_transport::codec::encode(&Note::Bookmark(bookmark.clone())))
        {
            for node in &self.roster.borrow().seated {
                if *node != identity.node {
                    net.send(*node, bytes.clone());
                }
            }
        }
        self.shown.post(bookmark, now);
    }

    /// Shows the rest of the process where we are.
    pub(super) fn publish(&mut self) {
        let mut pulse = self.mode.pulse(self.fresh, self.settled);
        // What it was told before it sat at the table may be older than what it has seen there, and nobody is believed a
        // term that raft would not take.
        let likely = pulse.term..=pulse.term.saturating_add(MAX_LEAP);
        let told = self.led.filter(|(term, _)| likely.contains(term));
        if let (Part::Watcher, Some((term, leader))) = (pulse.part, told) {
            (pulse.term, pulse.leader) = (term, leader);
        }
        let before = self.pulse.borrow().clone();
        // Another server may be behind the one before it, and so may a log that failed and is opened again.
        pulse.term = pulse.term.max(before.term);
        let revised = pulse.revision != self.roster.borrow().revision
            || self.roster.borrow().config != *self.mode.replica().config();
        if revised {
            let roster = Arc::new(self.mode.roster(&self.parts.told));
            self.tell_changes(&self.roster.borrow().clone(), &roster);
            self.roster.send_replace(roster);
        }
        let jobs = self.mode.replica().machine().jobs_revision();
        self.jobs.send_if_modified(|seen| std::mem::replace(seen, jobs) != jobs);
        self.set_pace();
        pulse.tick = self.tick;
        let patience = match pulse.part {
            Part::Voter | Part::Learner => self.tick * LEADER_UNHEARD_TICKS,
            Part::Watcher | Part::Joining => LEADER_UNHEARD,
        };
        if !pulse.is_leader() && pulse.fresh.is_none_or(|at| at.elapsed() > patience) {
            pulse.leader = None;
        }
        if before.leader != pulse.leader
            && let Some(leader) = pulse.leader
        {
            self.tell("leader_changed", Some(leader), &pulse, |name| {
                format!("{name} leads in term {}", pulse.term)
            });
        }
        if before.part != pulse.part {
            let me = Some(self.parts.identity.node);
            self.tell("role_changed", me, &pulse, |name| {
                format!("{name} is a {} now", pulse.part.name())
            });
        }
        // Whoever waits for an index is woken by each change, and not by every sign of life.
        self.pulse.send_if_modified(|shown| {
            let (fresh, settled) = (shown.fresh, shown.settled);
            let changed = Pulse { fresh, settled, ..pulse.clone() } != *shown;
            *shown = pulse;
            changed
        });
    }

    /// As the members have agreed, or slower where the wire is too slow for that.
    fn set_pace(&mut self) {
        let tick = self.mode.replica().machine().tick().max(self.floor.tick());
        if tick != self.tick {
            tracing::info!(tick_ms = tick.as_millis(), "raft's tick has changed");
            self.tick = tick;
            self.voters.set_tick(tick);
        }
    }

    fn tell_changes(&self, old: &Roster, new: &Roster) {
        let pulse = self.mode.pulse(None, self.settled);
        for node in new.members.keys().filter(|node| !old.members.contains_key(node)) {
            self.tell("member_joined", Some(*node), &pulse, |name| format!("{name} has joined"));
        }
        for (node, place) in old.members.iter().filter(|(node, _)| !new.members.contains_key(node))
        {
            let text = format!("{} has left", place.name);
            self.tell("member_left", Some(*node), &pulse, |_| text);
        }
        for (party, name) in new.parties.iter().filter(|(id, _)| !old.parties.contains_key(id)) {
            let about = Some(party.to_string());
            self.say("party_founded", about, &pulse, format!("party {name} was founded"));
        }
        for id in new.requests.difference(&old.requests) {
            let text = format!("request {id} waits for answers");
            self.say("request_opened", Some(id.to_string()), &pulse, text);
        }
        for id in old.requests.difference(&new.requests) {
            let text = format!("request {id} was decided");
            self.say("request_closed", Some(id.to_string()), &pulse, text);
        }
        // A joint configuration names the new voters already; they count from its end on.
        let changed = old.voters != new.voters || old.config.is_joint();
        if changed && !new.config.is_joint() {
            let names = new.voters.iter().filter_map(|node| new.members.get(node));
            let names: Vec<&str> = names.map(|place| place.name.as_str()).collect();
            let text = format!("voters: {}", names.join(", "));
            self.say("voters_changed", None, &pulse, text);
        }
    }

    fn tell(
        &self,
        kind: &'static str,
        about: Option<NodeId>,
        pulse: &Pulse,
        text: impl FnOnce(&str) -> String,
    ) {
        let state = self.mode.replica().machine();
        let name = about.map(|node| match state.members().get(&node) {
            Some(member) => member.name.to_string(),
            None => node.short(),
        });
        let text = text(name.as_deref().unwrap_or_default());
        self.say(kind, about.map(|node| node.to_string()), pulse, text);
    }

    fn say(&self, kind: &'static str, about: Option<String>, pulse: &Pulse, text: String) {
        tracing::info!(index = pulse.index, term = pulse.term, "{text}");
        let happened = Happened { index: pulse.index, time_ms: clock::now().0, kind, about, text };
        // Nobody may be listening.
        let _ = self.shown.happened.send(Arc::new(happened));
    }
}

/// How long a majority of the voters takes to answer this node.
fn trip(net: Option<&Net>, roster: &Roster) -> Option<Duration> {
    let links = net?.links();
    let voters = links.iter().filter(|link| roster.voters.contains(&link.node));
    pace::quorum_trip(voters.map(|link| link.rtt).collect(), roster.voters.len())
}

/// The time that a leader gives its entries: its own clock's, unless most voters' clocks are far behind that.
/// Mesh time never goes back, so one wrong clock must not move it.
fn dated(own: Time, voters: Option<Time>) -> Time {
    let ahead = u64::try_from(CLOCK_AHEAD.as_millis()).unwrap_or(u64::MAX);
    voters.map_or(own, |voters| own.min(Time(voters.0.saturating_add(ahead))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_a_day_ahead_dates_entries_a_minute_ahead_at_most() {
        let (noon, day, minute) = (1_800_000_000_000, 86_400_000, 60_000);
        assert_eq!(dated(Time(noon + day), Some(Time(noon))), Time(noon + minute));
        assert_eq!(dated(Time(noon + 5_000), Some(Time(noon))), Time(noon + 5_000));
        // One that is behind holds back nobody but itself, and alone there is nobody to ask.
        assert_eq!(dated(Time(noon - day), Some(Time(noon))), Time(noon - day));
        assert_eq!(dated(Time(noon + day), None), Time(noon + day));
    }
}
