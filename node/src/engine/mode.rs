//! How this node follows the log right now: at the table, from afar, or not at all.

use std::time::Instant;

use mesh_consensus::core::Role;
use mesh_consensus::driver::{Driver, Outbox, Settings};
use mesh_consensus::follow::{self, SeatError};
use mesh_consensus::id::{NodeId, RaftId};
use mesh_consensus::log::{Entry, Log, LogError, Snapshot};
use mesh_consensus::machine::StateMachine as _;
use mesh_consensus::message::Message;
use mesh_consensus::replica::Replica;
use mesh_storage::disk::RealDisk;
use mesh_storage::log::{LogSettings, OpenError, RedbLog};

use super::{EngineError, PERSIST_EVERY, Parts, Roster, Told};
use crate::clock;
use crate::dir::LOG;
use crate::handle::{Part, Pulse};
use crate::state::State;
use crate::state::level::LEVEL;

/// Bytes of entries that a watcher is sent at once.
const FEED_BYTES: u64 = 256 << 10;

/// How this node follows the log.
pub(super) enum Mode {
    /// A configuration has its seat: raft feeds it.
    Seated(Box<Driver<RedbLog, State>>),
    /// It follows another node.
    Watching(Box<Watching>),
    /// Its log failed, and is opened again at that moment.
    Broken {
        /// What it knew last.
        replica: Box<Replica<State>>,
        /// When to try again.
        until: Instant,
        /// How often it was tried.
        tries: u32,
    },
}

/// A watcher's log and replica.
pub(super) struct Watching {
    log: RedbLog,
    pub(super) replica: Replica<State>,
    /// The index that the log's snapshot has.
    kept: u64,
    kept_at: Instant,
}

/// Loses every message: for a driver that is only opened to see what its log says.
struct Nowhere;

impl Outbox for Nowhere {
    fn send(&mut self, _: NodeId, _: Message) {}
}

impl Mode {
    /// Opens the log, and sees whether it gives this node a seat. With it comes the last checkpoint
    /// in the log, if there is one. What was applied up to `known` before counts as committed: nobody who asks us twice
    /// may see the state go back.
    pub(super) fn open(parts: &Parts, known: u64) -> Result<(Self, Option<Snapshot>), EngineError> {
        let log = open_log(parts)?;
        if log.identity() != parts.identity {
            let (log, member) = (Box::new(log.identity()), Box::new(parts.identity));
            return Err(EngineError::OtherLog { log, member });
        }
        if log.snapshot()?.is_none() {
            let identity = log.identity();
            let replica = Replica::blank(identity.mesh, identity.epoch, State::blank(LEVEL));
            return Ok((Self::watching(log, replica), None));
        }
        let mut driver = open_driver(parts, log)?;
        driver.know_committed(known);
        // What the log knows to be committed is applied here. Nobody waits for any of it yet.
        let turn = driver.turn(clock::now(), [], &mut Nowhere)?;
        Ok((Self::settle(driver), turn.checkpoint))
    }

    /// Stays at the table if the configuration has this node's seat.
    fn settle(driver: Driver<RedbLog, State>) -> Self {
        let seat = driver.log().identity().raft_id;
        if driver.replica().config().contains(seat) {
            return Mode::Seated(Box::new(driver));
        }
        let (log, replica) = driver.into_parts();
        Self::watching(log, replica)
    }

    fn watching(log: RedbLog, replica: Replica<State>) -> Self {
        let kept = replica.index();
        Mode::Watching(Box::new(Watching { log, replica, kept, kept_at: clock::steady() }))
    }

    /// Nothing but a replica: what is left while one mode gives way to the next.
    pub(super) fn broken(replica: &Replica<State>) -> Self {
        Mode::Broken { replica: Box::new(replica.clone()), until: clock::steady(), tries: 0 }
    }

    /// Whether this node leads and has news for the others that no entry has carried yet.
    pub(super) fn has_news(&self) -> bool {
        matches!(self, Mode::Seated(driver) if driver.has_news())
    }

    /// The replica as it is.
    pub(super) fn replica(&self) -> &Replica<State> {
        match self {
            Mode::Seated(driver) => driver.replica(),
            Mode::Watching(watching) => &watching.replica,
            Mode::Broken { replica, .. } => replica,
        }
    }

    /// Who belongs.
    pub(super) fn roster(&self, told: &Told) -> Roster {
        Roster::of(self.replica(), told)
    }

    /// What the node is doing.
    pub(super) fn pulse(&self, fresh: Option<Instant>, settled: Instant) -> Pulse {
        let replica = self.replica();
        let (part, role, term, leader, commit) = match self {
            Mode::Seated(driver) => {
                let status = driver.status();
                let seat = driver.log().identity().raft_id;
                let votes = [&replica.config().voters, &replica.config().outgoing];
                let part = match votes.iter().any(|set| set.contains(&seat)) {
                    true => Part::Voter,
                    false => Part::Learner,
                };
                (part, status.role, status.term, status.leader, status.commit)
            }
            _ if replica.index() == 0 => (Part::Joining, Role::Follower, 0, None, 0),
            Mode::Watching(watching) => {
                // At its seat it may have seen later terms than that of the last entry.
                let term = watching.log.hard_state().term.max(replica.term());
                (Part::Watcher, Role::Follower, term, None, replica.index())
            }
            Mode::Broken { .. } => {
                (Part::Watcher, Role::Follower, replica.term(), None, replica.index())
            }
        };
        Pulse {
            part,
            role,
            term,
            leader: leader.and_then(|seat: RaftId| replica.machine().node_at(seat)),
            index: replica.index(),
            commit,
            time: replica.time(),
            history: replica.history(),
            revision: replica.machine().revision(),
            tick: replica.machine().tick(),
            fresh,
            settled,
        }
    }

    /// Applied entries after `index`; `None` if they are gone or were never here.
    pub(super) fn entries_after(&self, index: u64) -> Option<Vec<Entry>> {
        match self {
            Mode::Seated(driver) => driver.entries_after(index, FEED_BYTES).ok().flatten(),
            _ => None,
        }
    }

    /// Takes the seat that a configuration gives, once this watcher knows of it.
    pub(super) fn take_seat(self, parts: &Parts) -> Result<Self, EngineError> {
        let Mode::Watching(mut watching) = self else { return Ok(self) };
        if !watching.replica.config().contains(parts.identity.raft_id) {
            return Ok(Mode::Watching(watching));
        }
        watching.keep()?;
        let Watching { log, .. } = *watching;
        Ok(Mode::Seated(Box::new(open_driver(parts, log)?)))
    }

    /// Leaves the table if the configuration has this node's seat no more, or if told so.
    pub(super) fn leave_seat(self, anyway: bool) -> Self {
        match self {
            Mode::Seated(driver) if anyway => {
                let (log, replica) = driver.into_parts();
                Self::watching(log, replica)
            }
            Mode::Seated(driver) => Self::settle(*driver),
            other => other,
        }
    }

    /// The log failed: tries again in a while. What was applied can still be read.
    pub(super) fn fail(self, error: &LogError) -> Self {
        let (replica, tries) = match self {
            Mode::Seated(driver) => (driver.into_parts().1, 0),
            Mode::Watching(watching) => (watching.replica, 0),
            Mode::Broken { replica, tries, .. } => (*replica, tries + 1),
        };
        let wait = std::time::Duration::from_secs(1 << tries.min(2));
        tracing::error!(
            error = error as &dyn std::error::Error,
            again_in_s = wait.as_secs(),
            "the log failed"
        );
        Mode::Broken { replica: Box::new(replica), until: clock::steady() + wait, tries }
    }

    /// Opens a failed log again.
    pub(super) fn mend(self, parts: &Parts) -> Result<Self, EngineError> {
        let Mode::Broken { replica, until, tries } = self else { return Ok(self) };
        match Self::open(parts, replica.index()) {
            // The checkpoint that we hold is younger than any in the log, or as old.
            Ok((mut mode, _)) => {
                tracing::info!("the log is open again");
                if let Mode::Watching(watching) = &mut mode
                    && watching.replica.index() < replica.index()
                {
                    // A watcher writes once a minute. What it has seen since must not be forgotten: nobody
                    // who was removed may be a member again.
                    watching.replica = *replica;
                }
                Ok(mode)
            }
            // The disk may still be full or away. Damage is for a person to look at.
            Err(EngineError::Log(error)) => Ok(Mode::Broken { replica, until, tries }.fail(&error)),
            Err(EngineError::Open(OpenError::Io { source, .. })) => {
                let error = LogError { doing: "opened again", source: Box::new(source) };
                Ok(Mode::Broken { replica, until, tries }.fail(&error))
            }
            Err(error) => Err(error),
        }
    }

    /// Keeps a watcher's state on disk: at most once in a while, to spare cheap cards.
    pub(super) fn persist(&mut self, now: bool) -> Result<(), LogError> {
        let Mode::Watching(watching) = self else { return Ok(()) };
        let due = watching.kept_at.elapsed() >= PERSIST_EVERY;
        if watching.replica.index() > watching.kept && (due || now) {
            watching.keep()?;
        }
        Ok(())
    }
}

impl Watching {
    fn keep(&mut self) -> Result<(), LogError> {
        let snapshot = self.replica.snapshot();
        match follow::seat(&mut self.log, &snapshot) {
            Ok(()) => {}
            Err(SeatError::Log(error)) => return Err(error),
            // The log knows more, or something else: it is not this replica's to overwrite.
            Err(error) => {
                return Err(LogError { doing: "brought up to date", source: Box::new(error) });
            }
        }
        self.kept = snapshot.index;
        self.kept_at = clock::steady();
        Ok(())
    }

    /// Replaces the replica by a confirmed snapshot.
    pub(super) fn restore(&mut self, snapshot: &Snapshot) -> Result<(), EngineError> {
        let identity = self.log.identity();
        let blank = State::blank(LEVEL);
        self.replica = Replica::restore(identity.mesh, identity.epoch, snapshot, blank)?;
        Ok(())
    }
}

fn open_log(parts: &Parts) -> Result<RedbLog, EngineError> {
    let io = |source| OpenError::Io { name: LOG.to_owned(), source };
    let disk = RealDisk::open(parts.dir.path()).map_err(io)?;
    let usable =
        |identity: &_, snapshot: &_| Replica::check(identity, snapshot, State::blank(LEVEL));
    Ok(RedbLog::open_for(&disk, LOG, LogSettings::default(), usable)?)
}

fn open_driver(parts: &Parts, log: RedbLog) -> Result<Driver<RedbLog, State>, EngineError> {
    let introduced = parts.told.introduced.clone();
    let settings = Settings {
        introduced,
        checkpoints: true,
        ..Settings::new(u64::from_le_bytes(crate::random()))
    };
    Ok(Driver::open(log, State::blank(LEVEL), settings)?)
}

#[cfg(test)]
mod tests {
    use mesh_consensus::log::Payload;

    use super::*;
    use crate::engine::tests::founded;

    fn watching(mode: &mut Mode) -> &mut Watching {
        let Mode::Watching(watching) = mode else { panic!("it does not watch") };
        watching
    }

    /// One more entry is confirmed; its index.
    fn hear(mode: &mut Mode) -> u64 {
        let replica = &mut watching(mode).replica;
        let (term, index) = (replica.term().max(1), replica.index() + 1);
        replica.apply(&Entry { term, index, payload: Payload::Empty }).unwrap();
        index
    }

    /// Where a start would begin.
    fn on_disk(mode: &mut Mode) -> u64 {
        watching(mode).log.snapshot().unwrap().unwrap().index
    }

    fn a_while_passes(mode: &mut Mode) {
        watching(mode).kept_at -= PERSIST_EVERY;
    }

    #[test]
    fn a_watcher_spares_its_disk_for_a_while_after_each_write() {
        let (_temp, mut engine, _orders, _shown) = founded();
        engine.give_up_seat();
        let mode = &mut engine.mode;
        let start = on_disk(mode);
        // However much comes, and however often it is asked whether it is time.
        for _ in 0..10 {
            hear(mode);
            mode.persist(false).unwrap();
        }
        assert_eq!(on_disk(mode), start);
        a_while_passes(mode);
        let last = hear(mode);
        mode.persist(false).unwrap();
        assert_eq!(on_disk(mode), last);
        hear(mode);
        mode.persist(false).unwrap();
        assert_eq!(on_disk(mode), last, "it has just written");

        // A clean end keeps everything. Without news nothing is written, however long it was.
        let last = hear(mode);
        mode.persist(true).unwrap();
        assert_eq!(on_disk(mode), last);
        a_while_passes(mode);
        let kept_at = watching(mode).kept_at;
        mode.persist(false).unwrap();
        assert_eq!(watching(mode).kept_at, kept_at, "there was nothing to write");
    }
}
