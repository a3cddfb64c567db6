//! What a node computes from the log: the same on every node.
//!
//! [`Replica`] takes committed entries in order. It checks each batch's signature, lets each batch
//! count once, keeps mesh time, and hands the commands to the [`StateMachine`]. It keeps two hashes:
//! the *history*, a chain over all entries, and the *digest* of the content at a snapshot (a chain
//! alone cannot check a snapshot).

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::command::{Batch, BatchError, exact};
use crate::id::{Epoch, Hash, MeshId, NodeId, RaftId};
use crate::log::{Config, ConfigChange, Entry, Identity, Payload, Snapshot};
use crate::machine::{At, Halt, Outcome, StateMachine};
use crate::planted::{Bug, Planted};
use crate::time::Time;

/// How far apart two batches of one author may overtake each other. An author keeps fewer than
/// this in flight.
pub const WINDOW: u64 = 256;
/// What a receipt takes in a snapshot, with its number.
const RECEIPT_BYTES: u64 = 8;
/// Batches that were checked and are not applied yet, of which that is remembered.
const MAX_CHECKED: usize = 256;

const FORMAT: u16 = 1;

/// What became of a batch that counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The entry at which it counted.
    pub index: u64,
    /// Commands that were refused: position and code. All others took effect.
    pub refused: Vec<(u32, u16)>,
}

impl Receipt {
    /// What became of the command at `position`.
    pub fn outcome(&self, position: u32) -> Outcome {
        match self.refused.iter().find(|(at, _)| *at == position) {
            Some((_, code)) => Outcome::Refused(*code),
            None => Outcome::Done,
        }
    }
}

/// Why a whole batch did not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// Not signed by its author for this mesh and epoch.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// Its author is not a member.
    #[error("{} is not a member", .0.short())]
    NotMember(NodeId),
    /// Its number is so far behind that nobody remembers whether it counted.
    #[error("batch {sequence} is too old: the author is at {top}")]
    TooOld {
        /// Its number.
        sequence: u64,
        /// The author's highest number so far.
        top: u64,
    },
}

/// What became of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It counted now.
    Counted(Receipt),
    /// It had counted before. This is what became of it then.
    Repeated(Receipt),
    /// It does not count.
    Rejected(Rejected),
}

impl Verdict {
    /// The receipt, if it counted at all.
    pub fn receipt(&self) -> Option<&Receipt> {
        match self {
            Verdict::Counted(receipt) | Verdict::Repeated(receipt) => Some(receipt),
            Verdict::Rejected(_) => None,
        }
    }
}

/// What an entry meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    /// Nothing.
    Empty,
    /// Bytes that are not a batch.
    Garbage(BatchError),
    /// A batch.
    Batch {
        /// Who it says wrote it.
        author: NodeId,
        /// Its number.
        sequence: u64,
        /// What became of it.
        verdict: Verdict,
    },
    /// A change of who votes: the configuration from now on, or `None` if the change is void.
    Config(Option<Config>),
}

/// An entry after it was applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// Its index.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// The hash chain up to and including it.
    pub history: Hash,
    /// Mesh time at it.
    pub time: Time,
    /// What it meant.
    pub fact: Fact,
}

/// Numbers of one author that have counted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Window {
    /// The highest number that has counted.
    top: u64,
    /// Every number above `top - WINDOW` that has counted.
    seen: BTreeMap<u64, Receipt>,
}

impl Window {
    fn record(&mut self, sequence: u64, receipt: Receipt) {
        self.top = self.top.max(sequence);
        self.seen.insert(sequence, receipt);
        let floor = self.top.saturating_sub(WINDOW);
        self.seen = self.seen.split_off(&(floor + 1));
    }

    fn is_too_old(&self, sequence: u64) -> bool {
        sequence <= self.top.saturating_sub(WINDOW)
    }
}

/// The replicated state of one node, at one index.
#[derive(Debug, Clone)]
pub struct Replica<S> {
    mesh: MeshId,
    epoch: Epoch,
    index: u64,
    term: u64,
    time: Time,
    history: Hash,
    config: Config,
    authors: BTreeMap<NodeId, Window>,
    machine: S,
    /// Hashes of batches whose signatures were checked here before they were logged.
    checked: VecDeque<Hash>,
    planted: Planted,
}

/// What a snapshot's data holds besides index, term and configuration.
#[derive(Serialize, Deserialize)]
struct Body<'a> {
    format: u16,
    mesh: MeshId,
    epoch: Epoch,
    time: Time,
    history: Hash,
    #[serde(borrow)]
    machine: &'a [u8],
    authors: BTreeMap<NodeId, Window>,
}

impl<S: StateMachine> Replica<S> {
    /// The replica of a mesh that begins now, with one voter.
    pub fn genesis(mesh: MeshId, time: Time, voter: RaftId, machine: S) -> Self {
        let config = Config { voters: [voter].into(), ..Config::default() };
        let history = Hash::of(&mesh.0);
        let mut replica = Self {
            mesh,
            epoch: 0,
            index: voter.0,
            term: 1,
            time,
            history,
            config,
            authors: BTreeMap::new(),
            machine,
            checked: VecDeque::new(),
            planted: Planted::default(),
        };
        replica.machine.on_config(replica.index, &replica.config);
        replica
    }

    /// A newcomer's: it knows nothing until the first snapshot.
    pub fn blank(mesh: MeshId, epoch: Epoch, machine: S) -> Self {
        Self {
            mesh,
            epoch,
            index: 0,
            term: 0,
            time: Time(0),
            history: Hash([0; 32]),
            config: Config::default(),
            authors: BTreeMap::new(),
            machine,
            checked: VecDeque::new(),
            planted: Planted::default(),
        }
    }

    /// The replica that `snapshot` holds, if it is of this mesh and epoch.
    ///
    /// `machine` is an empty state machine to fill.
    pub fn restore(
        mesh: MeshId,
        epoch: Epoch,
        snapshot: &Snapshot,
        mut machine: S,
    ) -> Result<Self, Halt> {
        let body: Body<'_> = exact(&snapshot.data)
            .ok_or_else(|| Halt::Damaged("the snapshot cannot be decoded".to_owned()))?;
        if body.format != FORMAT {
            return Err(Halt::Newer { found: body.format, known: FORMAT });
        }
        if body.mesh != mesh {
            return Err(Halt::Damaged(format!("the snapshot is of mesh {}", body.mesh.short())));
        }
        if body.epoch != epoch {
            return Err(Halt::Damaged(format!("the snapshot is of epoch {}", body.epoch)));
        }
        machine.restore(body.machine)?;
        Ok(Self {
            mesh,
            epoch,
            index: snapshot.index,
            term: snapshot.term,
            time: body.time,
            history: body.history,
            config: snapshot.config.clone(),
            authors: body.authors,
            machine,
            checked: VecDeque::new(),
            planted: Planted::default(),
        })
    }

    /// Whether this version can go on from a stored snapshot. `machine` is an empty state machine.
    pub fn check(identity: &Identity, snapshot: &Snapshot, machine: S) -> Result<(), Halt> {
        Self::restore(identity.mesh, identity.epoch, snapshot, machine).map(drop)
    }

    /// Everything at this index, in one canonical encoding.
    pub fn snapshot(&self) -> Snapshot {
        let machine = self.machine.snapshot();
        let body = Body {
            format: FORMAT,
            mesh: self.mesh,
            epoch: self.epoch,
            time: self.time,
            history: self.history,
            machine: &machine,
            authors: self.authors.clone(),
        };
        Snapshot {
            index: self.index,
            term: self.term,
            config: self.config.clone(),
            data: postcard::to_stdvec(&body).expect("a replica always encodes"),
        }
    }

    /// About how many bytes a snapshot has: the same on every node at this index.
    pub fn weight(&self) -> u64 {
        self.machine.weight() + self.authors.len() as u64 * WINDOW * RECEIPT_BYTES
    }

    /// Applies the next committed entry.
    ///
    /// An error means that this node must not go on; the replica is then worth nothing.
    pub fn apply(&mut self, entry: &Entry) -> Result<Applied, Halt> {
        let again = self.planted.has(Bug::DoubleApply) && entry.index <= self.index;
        if entry.index != self.index + 1 && !again {
            let message = format!("entry {} follows entry {}", entry.index, self.index);
            return Err(Halt::Damaged(message));
        }
        self.index = entry.index;
        self.term = entry.term;
        self.history = chain(self.history, entry);
        let fact = match &entry.payload {
            Payload::Empty => Fact::Empty,
            Payload::Batch { time, bytes } => self.on_batch(*time, bytes)?,
            Payload::Config(change) => Fact::Config(self.on_change(change)),
        };
        Ok(Applied {
            index: self.index,
            term: self.term,
            history: self.history,
            time: self.time,
            fact,
        })
    }

    /// Begins a new epoch after a recovery: `survivor` is the only voter from `index` on.
    pub(crate) fn recover(&mut self, index: u64, term: u64, epoch: Epoch, survivor: RaftId) {
        self.epoch = epoch;
        self.index = index;
        self.term = term;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.history.0);
        hasher.update(b"recovered");
        hasher.update(&index.to_le_bytes());
        hasher.update(&epoch.to_le_bytes());
        self.history = Hash(*hasher.finalize().as_bytes());
        self.config = Config { voters: [survivor].into(), ..Config::default() };
        // They were good for another epoch.
        self.checked.clear();
        self.machine.on_recovery(index, epoch, survivor);
        self.machine.on_config(index, &self.config);
    }

    /// Checks the signature of a batch before it is logged, and remembers that it is good: a leader need not
    /// check it once more when it applies it.
    pub fn verify(&mut self, batch: &Batch) -> Result<(), BatchError> {
        batch.verify(self.mesh, self.epoch)?;
        if self.checked.len() >= MAX_CHECKED {
            self.checked.pop_front();
        }
        self.checked.push_back(Hash::of(batch.as_bytes()));
        Ok(())
    }

    /// Whether a batch with exactly these bytes was checked. It is asked once.
    fn was_checked(&mut self, batch: &Batch) -> bool {
        let hash = Hash::of(batch.as_bytes());
        let at = self.checked.iter().position(|checked| *checked == hash);
        at.and_then(|at| self.checked.remove(at)).is_some()
    }

    fn on_batch(&mut self, time: Time, bytes: &[u8]) -> Result<Fact, Halt> {
        self.time = match self.planted.has(Bug::TimeGoesBack) {
            true => time,
            false => self.time.max(time),
        };
        let batch = match Batch::parse(bytes) {
            Ok(batch) => batch,
            Err(error) => return Ok(Fact::Garbage(error)),
        };
        let verdict = match self.judge(&batch) {
            Err(rejected) => Verdict::Rejected(rejected),
            Ok(Some(receipt)) => Verdict::Repeated(receipt),
            Ok(None) => Verdict::Counted(self.count(&batch)?),
        };
        Ok(Fact::Batch { author: batch.author(), sequence: batch.sequence(), verdict })
    }

    /// Whether the batch counts; `Some` if it has counted before.
    fn judge(&mut self, batch: &Batch) -> Result<Option<Receipt>, Rejected> {
        if !self.was_checked(batch) {
            batch.verify(self.mesh, self.epoch)?;
        }
        if !self.machine.may_write(batch.author()) {
            return Err(Rejected::NotMember(batch.author()));
        }
        let sequence = batch.sequence();
        if sequence == 0 {
            // Numbers begin at one: zero is "none yet".
            return Err(Rejected::TooOld { sequence, top: self.top(batch.author()) });
        }
        let Some(window) = self.authors.get(&batch.author()) else {
            return Ok(None);
        };
        if self.planted.has(Bug::NoWindow) {
            return Ok(None);
        }
        if let Some(receipt) = window.seen.get(&sequence) {
            return Ok(Some(receipt.clone()));
        }
        let overtaken = self.planted.has(Bug::MaxInsteadOfWindow) && sequence <= window.top;
        if window.is_too_old(sequence) || overtaken {
            return Err(Rejected::TooOld { sequence, top: window.top });
        }
        Ok(None)
    }

    fn count(&mut self, batch: &Batch) -> Result<Receipt, Halt> {
        let mut receipt = Receipt { index: self.index, refused: Vec::new() };
        for (position, command) in (0u32..).zip(batch.commands()) {
            let at = At {
                mesh: self.mesh,
                epoch: self.epoch,
                index: self.index,
                time: self.time,
                author: batch.author(),
                sequence: batch.sequence(),
                position,
            };
            if let Outcome::Refused(code) = self.machine.apply(&at, command)? {
                receipt.refused.push((position, code));
            }
        }
        self.authors.entry(batch.author()).or_default().record(batch.sequence(), receipt.clone());
        Ok(receipt)
    }

    fn on_change(&mut self, change: &ConfigChange) -> Option<Config> {
        let next = self.config.after(change)?;
        // Leaving a joint configuration finishes what was allowed before.
        if *change != ConfigChange::Leave && !self.machine.allows(&next) {
            return None;
        }
        self.config = next.clone();
        self.machine.on_config(self.index, &self.config);
        Some(next)
    }

    /// What became of `author`'s batch `sequence`, if it has counted lately.
    pub fn receipt(&self, author: NodeId, sequence: u64) -> Option<&Receipt> {
        self.authors.get(&author)?.seen.get(&sequence)
    }

    /// The highest number of `author`'s batches that has counted; zero if none has.
    pub fn top(&self, author: NodeId) -> u64 {
        self.authors.get(&author).map_or(0, |window| window.top)
    }

    /// The replicated state.
    pub fn machine(&self) -> &S {
        &self.machine
    }

    /// The last index applied; zero in a newcomer's.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// The term of the last entry applied.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Mesh time.
    pub fn time(&self) -> Time {
        self.time
    }

    /// The hash chain over everything applied.
    pub fn history(&self) -> Hash {
        self.history
    }

    /// Who votes, as of the last index applied.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The mesh it belongs to.
    pub fn mesh(&self) -> MeshId {
        self.mesh
    }

    /// Its epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(crate) fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }
}

/// The history that a snapshot says it has; `None` if it cannot be read.
pub fn history_of(snapshot: &Snapshot) -> Option<Hash> {
    exact::<Body<'_>>(&snapshot.data).map(|body| body.history)
}

/// The history after `entry`, given the history before it.
pub fn chain(history: Hash, entry: &Entry) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&history.0);
    let bytes = postcard::to_stdvec(entry).expect("an entry always encodes");
    hasher.update(&bytes);
    Hash(*hasher.finalize().as_bytes())
}
