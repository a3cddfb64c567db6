//! After a majority of the voters is gone for good: what a person does with the directories that are left.
//!
//! ```text
//!  each survivor       one of them          each party       the chosen survivor
//!  survey ─► a.survey ─► choose ─► order ─► sign ─► order ─► apply ─► mesh up leads alone
//!                                                             all others: mesh up --rejoin
//! ```
//!
//! [`mesh_consensus::recover`] decides; here are the files that pass between the steps, and what happens to
//! the directory. No node may run: each step that touches a directory holds its lock.
//!
//! [`apply`] makes the new epoch's log beside the old one, which is kept under another name, and then swaps
//! it in. A crash before the swap leaves everything as it was; after it, the same command finishes the work.
//! Once finished, an order is spent: it is for an epoch that has ended.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use mesh_consensus::id::{Epoch, NodeId, PartyId};
use mesh_consensus::log::{Identity, Log, LogError, Snapshot};
use mesh_consensus::recover::{self, Order, RecoverError, Survey};
use mesh_storage::disk::{Disk, RealDisk};
use mesh_storage::log::{CreateError, LogSettings, OpenError, RedbLog};
use serde::{Deserialize, Serialize};

use crate::dir::{self, Dir, DirError, LOG, Membership};
use crate::party::PartySecret;
use crate::state::State;
use crate::state::level::LEVEL;

/// The new epoch's log, until it takes the place of the old one.
const NEXT: &str = "state.redb.recovering";
/// What the old log is called afterwards.
pub const KEPT: &str = "state.redb.before-recovery";
/// A key file is a line of text; more than this is something else.
const MAX_KEY_FILE: u64 = 1024;

/// What passes from one step to the next. The kind is part of the file, so that none is taken for another.
#[derive(Debug, Serialize, Deserialize)]
enum Paper {
    Survey(Survey),
    Order(Order),
}

/// Why a step was not done. Nothing has been changed.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The directory, or a file.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// The node is no member any more.
    #[error("this node has left its mesh")]
    Left,
    /// The log cannot be read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The log cannot be read to its end.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log is not that of the membership.
    #[error("the log in {} is not the one that its file `member` speaks of", .0.display())]
    OtherLog(PathBuf),
    /// There is no such file.
    #[error("there is no file {}", .0.display())]
    Missing(PathBuf),
    /// There is a file where a new one should be.
    #[error("there is a file {} already", .0.display())]
    Exists(PathBuf),
    /// The file is something else.
    #[error("{} is not {what}", path.display())]
    NotThat {
        /// Which file.
        path: PathBuf,
        /// What it should be.
        what: &'static str,
    },
    /// The directory has no key to sign with.
    #[error("the party's key is not in {}", .0.display())]
    NoKey(PathBuf),
    /// The order is not for the mesh that the directory is of.
    #[error("the order is of another mesh than {}", .0.display())]
    OtherMesh(PathBuf),
    /// It has been done.
    #[error("this directory is of epoch {epoch} already: the order has been applied")]
    Applied {
        /// The epoch that it is in.
        epoch: Epoch,
    },
    /// The rules do not allow it.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// The new log could not be made.
    #[error("the new epoch's log could not be made")]
    Create(#[from] CreateError),
}

impl RecoveryError {
    /// What a person can do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::Dir(error) => match error {
                DirError::Running(path) => format!("mesh down --dir {}", path.display()),
                error => error.hint(),
            },
            Self::Left => "go on from another survivor".into(),
            Self::Open(_) | Self::Log(_) | Self::OtherLog(_) => {
                "go on without this survivor: mesh up --rejoin once the mesh is back".into()
            }
            Self::Missing(_) => "check the name".into(),
            Self::Exists(_) => "name a new file, or move that one away".into(),
            Self::NotThat { .. } => "mesh recover --help shows which file each step takes".into(),
            Self::NoKey(_) => "mesh recover sign ORDER --key FILE".into(),
            Self::OtherMesh(_) => {
                "mesh recover sign ORDER --dir DIR, of a node of that mesh; or --key FILE".into()
            }
            Self::Applied { .. } => "mesh up".into(),
            Self::Recover(error) => match error {
                RecoverError::TooFew { .. } => {
                    "have further parties sign it: mesh recover sign ORDER".into()
                }
                RecoverError::OtherLog { .. } => {
                    "apply it in the directory of the node that it names; if that one ran since, \
                     survey all again"
                        .into()
                }
                RecoverError::Halt(halt) => halt.hint().into(),
                _ => "mesh recover survey on every survivor, then choose again".into(),
            },
            Self::Create(_) => "make room on the disk, then try again".into(),
        }
    }
}

/// What came of the surveys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// Names the survivor that knows most. Nobody has signed it yet.
    pub order: Order,
    /// The survivors that were surveyed: each counts once, however many of its surveys there are.
    pub surveyed: BTreeSet<NodeId>,
}

/// What came of a signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    /// Who signed.
    pub party: PartyId,
    /// Everyone who has signed so far.
    pub signers: Vec<PartyId>,
}

/// The epoch that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// Which one.
    pub epoch: Epoch,
    /// The node that leads it alone.
    pub node: NodeId,
    /// Where the old log is.
    pub kept: PathBuf,
}

/// Writes down what the log of `dir` holds.
pub fn survey(dir: &Dir, out: &Path) -> Result<Survey, RecoveryError> {
    dir.check()?;
    let _lock = dir.lock()?;
    let membership = member(dir)?;
    let log = RedbLog::open(&disk(dir)?, LOG, LogSettings::default())?;
    if log.identity() != membership.identity {
        return Err(RecoveryError::OtherLog(dir.path().to_path_buf()));
    }
    let survey = Survey::of(dir.node_key()?.signing(), &log)?;
    keep(out, &Paper::Survey(survey.clone()))?;
    Ok(survey)
}

/// Makes the order that names the survivor which knows most.
pub fn choose(surveys: &[PathBuf], out: &Path) -> Result<Chosen, RecoveryError> {
    let surveys = surveys.iter().map(|path| match paper(path, "a survey, or it is damaged")? {
        Paper::Survey(survey) => Ok(survey),
        Paper::Order(_) => not_that(path, "a survey"),
    });
    let surveys: Vec<Survey> = surveys.collect::<Result<_, _>>()?;
    let order = Order::new(recover::choose(&surveys)?);
    keep(out, &Paper::Order(order.clone()))?;
    Ok(Chosen { order, surveyed: surveys.iter().map(|survey| survey.node).collect() })
}

/// Adds a party's signature to an order. Once is enough.
pub fn sign(path: &Path, secret: &PartySecret) -> Result<Signed, RecoveryError> {
    let mut order = order(path)?;
    let party = secret.id();
    // One that was there but does not count is replaced.
    order.signatures.retain(|(signer, _)| *signer != party);
    order.sign(&secret.signing());
    let signers = order.signatures.iter().map(|(signer, _)| *signer).collect();
    dir::write(path, &Paper::Order(order))?;
    Ok(Signed { party, signers })
}

/// Adds the signature of the party whose node `dir` is of. Its key is for the mesh of that node alone.
pub fn sign_in(dir: &Dir, path: &Path) -> Result<Signed, RecoveryError> {
    let secret = key_in(dir)?;
    let mesh = order(path)?.mesh;
    if dir.membership()?.is_some_and(|own| own.identity.mesh != mesh) {
        return Err(RecoveryError::OtherMesh(dir.path().to_path_buf()));
    }
    sign(path, &secret)
}

/// The party's secret in the directory of one of its nodes.
pub fn key_in(dir: &Dir) -> Result<PartySecret, RecoveryError> {
    dir.check()?;
    dir.party_secret()?.ok_or_else(|| RecoveryError::NoKey(dir.path().to_path_buf()))
}

/// The party's secret in a file, as `mesh party key --out` writes it.
pub fn key_file(path: &Path) -> Result<PartySecret, RecoveryError> {
    let read = |mut text: String| {
        fs::File::open(path)?.take(MAX_KEY_FILE).read_to_string(&mut text).map(|_| text)
    };
    let text = zeroize::Zeroizing::new(match read(String::new()) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(RecoveryError::Missing(path.to_path_buf()));
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidData => String::new(),
        Err(source) => return Err(io_error("read", path, source)),
    });
    let bytes = data_encoding::HEXLOWER_PERMISSIVE.decode(text.trim().as_bytes());
    match bytes
        .map(zeroize::Zeroizing::new)
        .ok()
        .and_then(|bytes| <[u8; 32]>::try_from(&bytes[..]).ok())
    {
        Some(bytes) => Ok(PartySecret::new(bytes)),
        None => not_that(path, "a party's key"),
    }
}

/// Says whether [`apply`] would do it, as things are. Nothing is changed.
pub fn check(dir: &Dir, path: &Path) -> Result<(), RecoveryError> {
    dir.check()?;
    let _lock = dir.lock()?;
    plan(dir, path).map(drop)
}

/// Begins the new epoch in the directory of the survivor that the order names.
pub fn apply(dir: &Dir, path: &Path) -> Result<Begun, RecoveryError> {
    dir.check()?;
    let _lock = dir.lock()?;
    let Plan { membership, next, begins } = plan(dir, path)?;
    let Some((ended, snapshot)) = begins else {
        return finish(dir, membership, next, dir.file(KEPT));
    };
    let disk = disk(dir)?;
    let failed = |source| io_error("replace", &dir.file(LOG), source);
    if disk.exists(NEXT).map_err(failed)? {
        disk.remove(NEXT).map_err(failed)?;
    }
    drop(RedbLog::create(&disk, NEXT, next, Some(&snapshot), LogSettings::default())?);
    let kept = keep_old(dir, ended)?;
    disk.rename(NEXT, LOG).map_err(failed)?;
    finish(dir, membership, next, kept)
}

/// What an order comes to in a directory.
struct Plan {
    membership: Membership,
    /// Whose log it will be.
    next: Identity,
    /// The epoch that ends, and what the next begins with; `None` if an earlier attempt came as far as that.
    begins: Option<(Epoch, Snapshot)>,
}

/// Checks an order against the directory. Whoever calls this holds its lock.
fn plan(dir: &Dir, path: &Path) -> Result<Plan, RecoveryError> {
    let order = order(path)?;
    let membership = member(dir)?;
    let (ours, node) = (membership.identity, membership.identity.node);
    if (ours.mesh, node) == (order.mesh, order.survivor) && ours.epoch > order.epoch {
        return Err(RecoveryError::Applied { epoch: ours.epoch });
    }
    let log = RedbLog::open(&disk(dir)?, LOG, LogSettings::default())?;
    let next = log.identity();
    let is_swapped = next == Identity { epoch: order.epoch.saturating_add(1), ..ours };
    if is_swapped && (ours.mesh, ours.epoch, node) == (order.mesh, order.epoch, order.survivor) {
        return Ok(Plan { membership, next, begins: None });
    }
    if log.identity() != ours {
        return Err(RecoveryError::OtherLog(dir.path().to_path_buf()));
    }
    let blank = State::blank(LEVEL);
    let (next, snapshot) = recover::recover(&log, blank, &order, State::present_parties)?;
    Ok(Plan { membership, next, begins: Some((order.epoch, snapshot)) })
}

/// Says in `member` that the directory is of the new epoch: the last step.
fn finish(
    dir: &Dir,
    membership: Membership,
    next: Identity,
    kept: PathBuf,
) -> Result<Begun, RecoveryError> {
    let Membership { party, worker, left, .. } = membership;
    dir.keep_membership(&Membership {
        identity: next,
        party,
        worker,
        // Admissions and seats of the old epoch count no more; its state knows who the others are.
        chain: Vec::new(),
        introduced: Vec::new(),
        voters: vec![next.node],
        left,
    })?;
    Ok(Begun { epoch: next.epoch, node: next.node, kept })
}

/// Gives the old log a second name, so that it stays when the new one takes the first.
fn keep_old(dir: &Dir, epoch: Epoch) -> Result<PathBuf, RecoveryError> {
    let log = dir.file(LOG);
    let mut kept = dir.file(KEPT);
    let inode = |path: &Path| fs::metadata(path).map(|about| about.ino()).ok();
    // One that an earlier recovery left is not overwritten.
    if kept.exists() && inode(&kept) != inode(&log) {
        kept = dir.file(&format!("{KEPT}.{epoch}"));
    }
    match fs::hard_link(&log, &kept) {
        Err(error)
            if error.kind() == io::ErrorKind::AlreadyExists && inode(&kept) == inode(&log) =>
        {
            Ok(kept)
        }
        Err(source) => Err(io_error("keep a copy of the log as", &kept, source)),
        Ok(()) => Ok(kept),
    }
}

fn member(dir: &Dir) -> Result<Membership, RecoveryError> {
    let membership = dir.membership()?.ok_or_else(|| DirError::Absent(dir.path().to_path_buf()))?;
    if membership.left { Err(RecoveryError::Left) } else { Ok(membership) }
}

fn disk(dir: &Dir) -> Result<RealDisk, RecoveryError> {
    RealDisk::open(dir.path()).map_err(|source| io_error("open", dir.path(), source))
}

fn order(path: &Path) -> Result<Order, RecoveryError> {
    match paper(path, "an order, or it is damaged")? {
        Paper::Order(order) => Ok(order),
        Paper::Survey(_) => not_that(path, "an order"),
    }
}

/// Reads a paper; `what` it should be, if it is none.
fn paper(path: &Path, what: &'static str) -> Result<Paper, RecoveryError> {
    match dir::read(path) {
        Ok(paper) => paper.ok_or_else(|| RecoveryError::Missing(path.to_path_buf())),
        // It is no file of a node: there is no directory to put in order.
        Err(DirError::Damaged(_)) => not_that(path, what),
        Err(error) => Err(error.into()),
    }
}

/// Writes a paper, and overwrites nothing: an order that was there may hold signatures.
fn keep(path: &Path, new: &Paper) -> Result<(), RecoveryError> {
    if fs::symlink_metadata(path).is_ok() {
        return Err(RecoveryError::Exists(path.to_path_buf()));
    }
    Ok(dir::write(path, new)?)
}

fn not_that<T>(path: &Path, what: &'static str) -> Result<T, RecoveryError> {
    Err(RecoveryError::NotThat { path: path.to_path_buf(), what })
}

fn io_error(doing: &'static str, path: &Path, source: io::Error) -> RecoveryError {
    RecoveryError::Dir(DirError::Io { doing, path: path.to_path_buf(), source })
}
