//! Files and directories as frames, and frames as files and directories, beneath one directory handle.
//!
//! ```text
//!  Source ──► Entry, Bytes …, Entry, …, LeftOut, End ──► Sink
//! ```
//!
//! The task writes in the directory meanwhile, and may plant links there; what comes from elsewhere may name any path.
//! So every path is resolved by the kernel beneath the handle (`openat2`): a link that a person names is followed while
//! it stays beneath, and on the way through a tree none is followed at all. A file appears under its name when it is
//! whole. Links, pipes and devices are left out, and counted.
//!
//! The same code reads and writes on the other end, in the CLI. All of it blocks: it wants a thread of its own.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use bytes::Bytes;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use tokio::sync::mpsc;

use super::frame::{Entry, Frame, MAX_BYTES, MAX_PATH};
use crate::executor::launch::WORK;

/// Directories in one another. Each that is being read is open.
const MAX_DEPTH: usize = 64;
/// So many entries are counted before the first is sent, to tell how much there is.
const MAX_COUNTED: usize = 10_000;
/// The longest name, in bytes.
const MAX_NAME: usize = 255;
/// How what is not whole yet is called.
const PARTIAL: &str = ".mesh-partial-";
/// How often a path is looked up again that was changed meanwhile.
const TRIES: usize = 16;

/// Why files could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// It leads elsewhere, or cannot be a path at all.
    #[error(
        "{0:?} is no path in the task's directory: name it from there, or as /work/…, without .."
    )]
    Path(String),
    /// It is not there.
    #[error("there is no {0:?}")]
    Missing(String),
    /// A link on the way.
    #[error("{0:?} leads out of its directory, by a link")]
    LeadsOut(String),
    /// A pipe, a device, a socket.
    #[error("{0:?} is neither a file nor a directory")]
    Odd(String),
    /// Something else has the name.
    #[error("{0:?} is in the way")]
    InTheWay(String),
    /// Too many directories in one another.
    #[error("{0:?} lies too deep")]
    TooDeep(String),
    /// It was longer when it was looked at.
    #[error("{0:?} became shorter while it was read")]
    Shorter(String),
    /// The system said no.
    #[error("{path:?} cannot be read or written")]
    Io {
        /// What.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// What comes is not what it should be.
    #[error("the other side does not send files as it should")]
    Malformed,
    /// Not everything came.
    #[error("it broke off before everything was there")]
    CutShort,
    /// Nobody takes what is read.
    #[error("nobody takes it any more")]
    Gone,
    /// The other side says what went wrong there.
    #[error("{0}")]
    Told(String),
}

fn failed(path: &str) -> impl FnOnce(Errno) -> TreeError {
    move |error| match error {
        Errno::NOENT => TreeError::Missing(path.to_owned()),
        Errno::XDEV | Errno::LOOP => TreeError::LeadsOut(path.to_owned()),
        Errno::NOTDIR | Errno::EXIST | Errno::ISDIR | Errno::NOTEMPTY => {
            TreeError::InTheWay(path.to_owned())
        }
        Errno::NXIO => TreeError::Odd(path.to_owned()),
        other => TreeError::Io { path: path.to_owned(), source: other.into() },
    }
}

fn unwritten(path: &str) -> impl FnOnce(io::Error) -> TreeError {
    move |source| TreeError::Io { path: path.to_owned(), source }
}

/// A directory, and nothing beside it.
#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
    new: New,
}

/// What becomes of what is made.
#[derive(Debug, Clone, Copy, Default)]
struct New {
    /// Whose it is.
    owner: Option<(u32, u32)>,
    /// Whether everybody may write it: where nobody can tell whose it should be.
    is_open: bool,
}

impl Root {
    /// A directory of whoever calls.
    pub fn open(path: &Path) -> Result<Self, TreeError> {
        Self::opened(path, OFlags::empty())
    }

    /// The directory of a task: what is made in it is the task's.
    pub(super) fn of_task(path: &Path) -> Result<Self, TreeError> {
        let mut root = Self::opened(path, OFlags::NOFOLLOW)?;
        let about = rustix::fs::fstat(&root.fd).map_err(failed("."))?;
        let is_root = nix::unistd::geteuid().is_root();
        root.new = New {
            owner: is_root.then_some((about.st_uid, about.st_gid)),
            is_open: about.st_mode & 0o002 != 0,
        };
        Ok(root)
    }

    fn opened(path: &Path, flags: OFlags) -> Result<Self, TreeError> {
        let flags = flags | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let shown = path.display().to_string();
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(failed(&shown))?;
        Ok(Self { fd, new: New::default() })
    }
}

/// The parts of a path that a person wrote, from the task's directory on. None of them leads back.
fn parts(path: &str) -> Result<Vec<&str>, TreeError> {
    let wrong = || TreeError::Path(path.chars().take(80).collect());
    // As the task sees it.
    let beneath = match path.strip_prefix(WORK) {
        Some("") => "",
        Some(rest) if rest.starts_with('/') => rest.trim_start_matches('/'),
        _ => path,
    };
    if beneath.starts_with('/') || path.len() > MAX_PATH || path.contains('\0') {
        return Err(wrong());
    }
    let parts: Vec<&str> =
        beneath.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    match parts.iter().all(|part| is_name(part)) {
        true => Ok(parts),
        false => Err(wrong()),
    }
}

/// Whether something in a directory can be called so.
fn is_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && name.len() <= MAX_NAME && !name.contains(['/', '\0'])
}

/// Opens a path that a person named: through links that stay beneath.
fn named(root: &impl AsFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { "." } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let mut tries = 0;
    loop {
        match rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            // Something on the way was renamed: the kernel does not say where it would have led.
            Err(Errno::AGAIN) if tries < TRIES => tries += 1,
            opened => return opened,
        }
    }
}

/// Opens something on the way through a tree: through no link.
fn plain(
    dir: &impl AsFd,
    path: impl rustix::path::Arg,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(dir, path, flags, mode, resolve)
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}

/// What something is.
#[derive(Debug, Clone, Copy)]
struct About {
    kind: FileType,
    mode: u32,
    bytes: u64,
}

impl About {
    fn of(fd: &OwnedFd) -> Result<Self, Errno> {
        let stat = rustix::fs::fstat(fd)?;
        let bytes = u64::try_from(stat.st_size).unwrap_or(0);
        let kind = FileType::from_raw_mode(stat.st_mode);
        Ok(Self { kind, mode: stat.st_mode & 0o777, bytes })
    }

    fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }
}

/// A file or directory that can be read.
#[derive(Debug)]
pub struct Source {
    fd: OwnedFd,
    about: About,
    /// For messages.
    shown: String,
}

impl Source {
    /// What a person named in a task's directory.
    pub(super) fn beneath(root: &Root, path: &str) -> Result<Self, TreeError> {
        let beneath = parts(path)?.join("/");
        // A pipe does not hold us up.
        let fd = named(&root.fd, &beneath, OFlags::RDONLY | OFlags::NONBLOCK);
        Self::of(fd.map_err(failed(path))?, path.to_owned())
    }

    /// What a person named on a machine of its own.
    pub fn open(path: &Path) -> Result<Self, TreeError> {
        let shown = path.display().to_string();
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(failed(&shown))?;
        Self::of(fd, shown)
    }

    fn of(fd: OwnedFd, shown: String) -> Result<Self, TreeError> {
        let about = About::of(&fd).map_err(failed(&shown))?;
        match about.kind {
            FileType::RegularFile | FileType::Directory => Ok(Self { fd, about, shown }),
            _ => Err(TreeError::Odd(shown)),
        }
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.about.is_dir()
    }

    /// Sends all of it, the end included.
    pub fn send(self, frames: &mpsc::Sender<Frame>) -> Result<(), TreeError> {
        let Self { fd, mut about, shown } = self;
        let mut left_out = 0;
        if about.is_dir() {
            about.bytes = count(&fd).unwrap_or(0);
            put(frames, entry(String::new(), about))?;
            let mut send = |found: Found| found.send(&shown, frames);
            walk(&fd, "", &mut left_out, &mut send)?;
        } else {
            Found { fd, path: String::new(), about }.send(&shown, frames)?;
        }
        if left_out > 0 {
            put(frames, Frame::LeftOut(left_out))?;
        }
        put(frames, Frame::End)
    }
}

/// Something on the way through a tree: a file or a directory, open.
struct Found {
    fd: OwnedFd,
    path: String,
    about: About,
}

impl Found {
    /// `top` is how the whole is called.
    fn send(self, top: &str, frames: &mpsc::Sender<Frame>) -> Result<(), TreeError> {
        let Self { fd, path, about } = self;
        if about.is_dir() {
            return put(frames, entry(path, About { bytes: 0, ..about }));
        }
        let shown = if path.is_empty() { top.to_owned() } else { path.clone() };
        put(frames, entry(path, about))?;
        let mut file = File::from(fd);
        let mut left = about.bytes;
        while left > 0 {
            // What is written to it meanwhile is not waited for.
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(MAX_BYTES);
            let mut block = vec![0; most];
            let read = file.read(&mut block).map_err(unwritten(&shown))?;
            if read == 0 {
                return Err(TreeError::Shorter(shown));
            }
            block.truncate(read);
            left -= read as u64;
            put(frames, Frame::Bytes(block.into()))?;
        }
        Ok(())
    }
}

fn entry(path: String, about: About) -> Frame {
    let About { mode, bytes, .. } = about;
    Frame::Entry(Entry { path, is_dir: about.is_dir(), mode, bytes })
}

fn put(frames: &mpsc::Sender<Frame>, frame: Frame) -> Result<(), TreeError> {
    frames.blocking_send(frame).map_err(|_| TreeError::Gone)
}

/// How many bytes the files of a directory have; `None` if there are too many to count.
fn count(dir: &OwnedFd) -> Option<u64> {
    let (mut entries, mut bytes) = (0, 0u64);
    let mut add = |found: Found| {
        entries += 1;
        if !found.about.is_dir() {
            bytes = bytes.saturating_add(found.about.bytes);
        }
        if entries > MAX_COUNTED { Err(TreeError::Gone) } else { Ok(()) }
    };
    walk(dir, "", &mut 0, &mut add).ok()?;
    Some(bytes)
}

/// Visits everything in a directory, directories before what is in them.
fn walk(
    dir: &OwnedFd,
    path: &str,
    left_out: &mut u64,
    visit: &mut dyn FnMut(Found) -> Result<(), TreeError>,
) -> Result<(), TreeError> {
    if path.split('/').count() > MAX_DEPTH {
        return Err(TreeError::TooDeep(path.to_owned()));
    }
    let mut names = Dir::read_from(dir).map_err(failed(path))?;
    while let Some(name) = names.read() {
        let name = name.map_err(failed(path))?;
        if matches!(name.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        let is_odd = !matches!(
            name.file_type(),
            FileType::RegularFile | FileType::Directory | FileType::Unknown
        );
        let text = match name.file_name().to_str() {
            Ok(text) if text.starts_with(PARTIAL) => continue,
            Ok(text) if !is_odd => text,
            _ => {
                *left_out += 1;
                continue;
            }
        };
        let at = joined(path, text);
        if at.len() > MAX_PATH {
            return Err(TreeError::TooDeep(at));
        }
        let opened = plain(dir, text, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty());
        let fd = match opened {
            Ok(fd) => fd,
            // It has gone meanwhile.
            Err(Errno::NOENT) => continue,
            Err(Errno::LOOP | Errno::NXIO | Errno::XDEV) => {
                *left_out += 1;
                continue;
            }
            Err(error) => return Err(failed(&at)(error)),
        };
        let about = About::of(&fd).map_err(failed(&at))?;
        match about.kind {
            FileType::RegularFile => visit(Found { fd, path: at, about })?,
            FileType::Directory => {
                let inner = fd.try_clone().map_err(unwritten(&at))?;
                visit(Found { fd, path: at.clone(), about })?;
                walk(&inner, &at, left_out, visit)?;
            }
            _ => *left_out += 1,
        }
    }
    Ok(())
}

/// A place where files are written.
#[derive(Debug)]
pub struct Sink {
    /// The directory in which the first entry appears.
    dir: OwnedFd,
    /// What that is called.
    name: String,
    new: New,
}

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Received {
    /// Files that are there.
    pub files: u64,
    /// Bytes that came.
    pub bytes: u64,
    /// Of so many, as far as is known.
    pub total: Option<u64>,
    /// Links and other things that were left out.
    pub left_out: u64,
}

impl Sink {
    /// A place that a person named in a task's directory: into it under `name`, if it is a directory there, or if it ends
    /// as one does; else in its stead. The directories above it are made.
    pub(super) fn beneath(root: &Root, path: &str, name: &str) -> Result<Self, TreeError> {
        let parts = parts(path)?;
        if !is_name(name) {
            return Err(TreeError::Path(name.chars().take(80).collect()));
        }
        let whole = parts.join("/");
        let new = root.new;
        let into = |dir| Self { dir, name: name.to_owned(), new };
        match named(&root.fd, &whole, OFlags::DIRECTORY) {
            Ok(dir) => return Ok(into(dir)),
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(error) => return Err(failed(path)(error)),
        }
        let mut dir = named(&root.fd, "", OFlags::DIRECTORY).map_err(failed(path))?;
        let is_dir = path.ends_with('/');
        let (last, above) =
            parts.split_last().ok_or_else(|| TreeError::Missing(path.to_owned()))?;
        for part in if is_dir { &parts[..] } else { above } {
            dir = step(&dir, part, new).map_err(failed(path))?;
        }
        Ok(match is_dir {
            true => into(dir),
            false => Self { dir, name: (*last).to_owned(), new },
        })
    }

    /// In a directory, under this name.
    pub fn within(root: Root, name: &str) -> Result<Self, TreeError> {
        match is_name(name) {
            true => Ok(Self { dir: root.fd, name: name.to_owned(), new: root.new }),
            false => Err(TreeError::Path(name.chars().take(80).collect())),
        }
    }

    /// Writes what comes, until its end. `told` is how far it is.
    pub fn receive(
        self,
        mut frames: mpsc::Receiver<Frame>,
        mut told: impl FnMut(&Received),
    ) -> Result<Received, TreeError> {
        let Self { dir, name, new } = self;
        let mut place = Place { dir: Rc::new(dir), name, new, top: Top::Awaited, last: None };
        let mut received = Received::default();
        let mut open: Option<Writing> = None;
        loop {
            match frames.blocking_recv().ok_or(TreeError::CutShort)? {
                Frame::Entry(entry) => {
                    finish(&mut open, &mut received)?;
                    if matches!(place.top, Top::Awaited) {
                        received.total = Some(entry.bytes).filter(|bytes| *bytes > 0);
                    }
                    open = place.begin(&entry)?;
                }
                Frame::Bytes(bytes) => {
                    let writing = open.as_mut().ok_or(TreeError::Malformed)?;
                    writing.write(&bytes)?;
                    received.bytes += bytes.len() as u64;
                }
                Frame::LeftOut(count) => received.left_out = count,
                Frame::End => {
                    finish(&mut open, &mut received)?;
                    if matches!(place.top, Top::Awaited) {
                        return Err(TreeError::Malformed);
                    }
                    told(&received);
                    return Ok(received);
                }
                Frame::Failed(why) => return Err(TreeError::Told(why)),
                Frame::Beat => {}
                _ => return Err(TreeError::Malformed),
            }
            told(&received);
        }
    }
}

/// Enters a directory, made if it is not there, and through links that stay where they are.
fn step(dir: &OwnedFd, name: &str, new: New) -> Result<OwnedFd, Errno> {
    match named(dir, name, OFlags::DIRECTORY) {
        Err(Errno::NOENT) => make(dir, name, 0o755, new),
        entered => entered,
    }
}

/// Makes a directory and enters it. One that is there already will do.
fn make(dir: &OwnedFd, name: &str, mode: u32, new: New) -> Result<OwnedFd, Errno> {
    // Whoever fills it must be able to.
    let mode = Mode::from_raw_mode(0o700 | (mode & 0o777));
    match rustix::fs::mkdirat(dir, name, mode) {
        Ok(()) => {
            let made = plain(dir, name, OFlags::DIRECTORY, Mode::empty())?;
            new.give(&made, 0o777)?;
            Ok(made)
        }
        Err(Errno::EXIST) => plain(dir, name, OFlags::DIRECTORY, Mode::empty()),
        Err(error) => Err(error),
    }
}

impl New {
    /// Gives something new to whom it belongs.
    fn give(self, fd: &impl AsFd, open_mode: u32) -> Result<(), Errno> {
        if let Some((uid, gid)) = self.owner {
            let given = std::os::unix::fs::fchown(fd.as_fd(), Some(uid), Some(gid));
            given.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        }
        match self.is_open {
            true => rustix::fs::fchmod(fd, Mode::from_raw_mode(open_mode)),
            false => Ok(()),
        }
    }
}

/// Where the next entry goes.
struct Place {
    /// The directory in which the first one appears, and what it is called there.
    dir: Rc<OwnedFd>,
    name: String,
    new: New,
    top: Top,
    /// The directory in which the last one was: most files have it in common with the one before.
    last: Option<(String, Rc<OwnedFd>)>,
}

/// The first entry.
#[derive(Clone)]
enum Top {
    /// It has not come yet.
    Awaited,
    /// A file: nothing can lie in it.
    File,
    /// All others lie in it.
    Directory(Rc<OwnedFd>),
}

impl Place {
    /// Makes a directory, or begins a file.
    fn begin(&mut self, entry: &Entry) -> Result<Option<Writing>, TreeError> {
        let path = entry.path.as_str();
        let (dir, name, shown) = match (self.top.clone(), path.is_empty()) {
            (Top::Awaited, true) => (self.dir.clone(), self.name.clone(), self.name.clone()),
            (Top::Directory(top), false) => {
                let depth = path.split('/').count();
                let is_ours = |part: &str| part.starts_with(PARTIAL);
                if depth > MAX_DEPTH + 1
                    || path.split('/').any(|part| !is_name(part) || is_ours(part))
                {
                    return Err(TreeError::Malformed);
                }
                let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
                (self.above(&top, above)?, name.to_owned(), path.to_owned())
            }
            _ => return Err(TreeError::Malformed),
        };
        let is_first = matches!(self.top, Top::Awaited);
        if entry.is_dir {
            let made = make(&dir, &name, entry.mode, self.new).map_err(failed(&shown))?;
            if is_first {
                self.top = Top::Directory(Rc::new(made));
            }
            return Ok(None);
        }
        if is_first {
            self.top = Top::File;
        }
        Writing::begin(dir, name, shown, entry, self.new).map(Some)
    }

    /// The directory of an entry. Those who send tell of it first.
    fn above(&mut self, top: &Rc<OwnedFd>, path: &str) -> Result<Rc<OwnedFd>, TreeError> {
        if path.is_empty() {
            return Ok(top.clone());
        }
        if let Some((_, dir)) = self.last.as_ref().filter(|(last, _)| last == path) {
            return Ok(dir.clone());
        }
        let dir = plain(&**top, path, OFlags::DIRECTORY, Mode::empty()).map_err(failed(path))?;
        let dir = Rc::new(dir);
        self.last = Some((path.to_owned(), dir.clone()));
        Ok(dir)
    }
}

/// A file that is being written, under a name of ours. Dropped before it is whole, it goes.
struct Writing {
    file: File,
    dir: Rc<OwnedFd>,
    partial: String,
    name: String,
    shown: String,
    /// Bytes that are yet to come.
    left: u64,
    is_named: bool,
}

impl Writing {
    fn begin(
        dir: Rc<OwnedFd>,
        name: String,
        shown: String,
        entry: &Entry,
        new: New,
    ) -> Result<Self, TreeError> {
        let partial = format!("{PARTIAL}{}", data_encoding::HEXLOWER.encode(&crate::random::<8>()));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mode = entry.mode & 0o777;
        let fd = plain(&*dir, partial.as_str(), flags, Mode::from_raw_mode(mode));
        let file = File::from(fd.map_err(failed(&shown))?);
        let left = entry.bytes;
        let writing = Self { file, dir, partial, name, shown, left, is_named: false };
        let open = if mode & 0o100 == 0 { 0o666 } else { 0o777 };
        new.give(&writing.file, open).map_err(failed(&writing.shown))?;
        Ok(writing)
    }

    fn write(&mut self, bytes: &Bytes) -> Result<(), TreeError> {
        self.left = self.left.checked_sub(bytes.len() as u64).ok_or(TreeError::Malformed)?;
        self.file.write_all(bytes).map_err(unwritten(&self.shown))
    }

    /// Gives it its name. What had it before is replaced, if it was a file or a link.
    fn finish(mut self) -> Result<(), TreeError> {
        if self.left > 0 {
            return Err(TreeError::Malformed);
        }
        let (dir, partial, name) = (&*self.dir, self.partial.as_str(), self.name.as_str());
        rustix::fs::renameat(dir, partial, dir, name).map_err(failed(&self.shown))?;
        self.is_named = true;
        Ok(())
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if !self.is_named {
            // What cannot be removed now goes with the directory.
            let _ = rustix::fs::unlinkat(&*self.dir, self.partial.as_str(), AtFlags::empty());
        }
    }
}

fn finish(open: &mut Option<Writing>, received: &mut Received) -> Result<(), TreeError> {
    if let Some(writing) = open.take() {
        writing.finish()?;
        received.files += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
