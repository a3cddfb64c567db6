//! What is in a tree, in the order of the paths.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};

use super::{ImportError, Options, check_cancel, locked, pipe, unreadable};
use crate::manifest::{ManifestError, check_path};
use crate::store::files::Stamp;

/// A path of the tree.
#[derive(Debug)]
pub(super) struct Entry {
    /// As the manifest will have it.
    pub(super) path: String,
    /// The file; none if it is an empty directory.
    pub(super) source: Option<Source>,
}

/// A file to read.
#[derive(Debug, Clone)]
pub(super) struct Source {
    /// Where it is: absolute, and no symbolic link.
    pub(super) file: PathBuf,
    pub(super) executable: bool,
    pub(super) stamp: Stamp,
}

/// A directory that is still to be read.
struct Directory {
    path: PathBuf,
    /// As the manifest would have it; empty for the root.
    name: String,
    /// Devices and inodes of the directories above and of this one.
    above: Vec<(u64, u64)>,
}

struct Walk<'a> {
    root: PathBuf,
    options: Options<'a>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Vec<Directory>,
    /// How many threads are reading a directory.
    busy: usize,
    found: Vec<Entry>,
    failed: Option<ImportError>,
}

/// Reads the tree below `path`, or the one file that it is.
pub(super) fn walk(path: &Path, options: Options<'_>) -> Result<Vec<Entry>, ImportError> {
    let root = fs::canonicalize(path).map_err(unreadable(path))?;
    let meta = fs::metadata(&root).map_err(unreadable(path))?;
    check_apart(options, path, &root, &meta)?;
    if !meta.is_dir() {
        // The name by which the user called it.
        let name = path.file_name().or(root.file_name()).unwrap_or_default();
        let name = part(path, name, "")?;
        return Ok(vec![Entry { path: name, source: Some(source(root, path, &meta)?) }]);
    }
    let first = Directory {
        path: root.clone(),
        name: String::new(),
        above: vec![(meta.dev(), meta.ino())],
    };
    let state = State { waiting: vec![first], ..State::default() };
    let walk = Walk { root, options, state: Mutex::new(state), changed: Condvar::new() };
    std::thread::scope(|scope| {
        for _ in 0..pipe::threads() {
            scope.spawn(|| walk.run());
        }
    });
    let State { mut found, failed, .. } =
        walk.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(error) = failed {
        return Err(error);
    }
    found.sort_unstable_by(|left, right| left.path.cmp(&right.path));
    Ok(found)
}

impl Walk<'_> {
    fn run(&self) {
        let mut state = locked(&self.state);
        loop {
            if state.failed.is_some() {
                return;
            }
            if let Some(directory) = state.waiting.pop() {
                state.busy += 1;
                drop(state);
                let outcome = self.read(&directory);
                state = locked(&self.state);
                state.busy -= 1;
                match outcome {
                    Ok((found, directories)) => {
                        state.found.extend(found);
                        state.waiting.extend(directories);
                    }
                    Err(error) => _ = state.failed.get_or_insert(error),
                }
                self.changed.notify_all();
            } else if state.busy == 0 {
                return;
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn read(&self, directory: &Directory) -> Result<(Vec<Entry>, Vec<Directory>), ImportError> {
        let (mut found, mut directories) = (Vec::new(), Vec::new());
        let fail = || unreadable(&directory.path);
        for item in fs::read_dir(&directory.path).map_err(fail())? {
            let item = item.map_err(fail())?;
            check_cancel(self.options.cancel)?;
            let path = item.path();
            let name = part(&path, &item.file_name(), &directory.name)?;
            let mut meta = item.metadata().map_err(unreadable(&path))?;
            let mut file = path.clone();
            if meta.is_symlink() {
                (file, meta) = self.resolve(&path, directory)?;
            }
            check_apart(self.options, &path, &file, &meta)?;
            if meta.is_dir() {
                let mut above = directory.above.clone();
                above.push((meta.dev(), meta.ino()));
                directories.push(Directory { path: file, name, above });
            } else {
                found.push(Entry { path: name, source: Some(source(file, &path, &meta)?) });
            }
        }
        if found.is_empty() && directories.is_empty() && !directory.name.is_empty() {
            found.push(Entry { path: directory.name.clone(), source: None });
        }
        Ok((found, directories))
    }

    /// What a symbolic link leads to, if that may be taken.
    fn resolve(&self, path: &Path, from: &Directory) -> Result<(PathBuf, Metadata), ImportError> {
        let refuse = |why| Err(ImportError::Link { path: path.to_path_buf(), why });
        let Ok(target) = fs::canonicalize(path) else { return refuse("leads nowhere") };
        let meta = fs::metadata(&target).map_err(unreadable(path))?;
        if !self.options.follow && !target.starts_with(&self.root) {
            return refuse("leads out of the tree (--follow takes it nevertheless)");
        }
        if !self.options.follow && !meta.is_file() {
            return refuse("leads to no regular file (--follow takes directories, too)");
        }
        if meta.is_dir() && from.above.contains(&(meta.dev(), meta.ino())) {
            return refuse("leads to a directory that it is in");
        }
        Ok((target, meta))
    }
}

/// Refuses what stays apart; `file` is what `shown` leads to.
fn check_apart(
    options: Options<'_>,
    shown: &Path,
    file: &Path,
    meta: &Metadata,
) -> Result<(), ImportError> {
    match options.apart {
        Some(apart) if apart.holds(file, meta) => {
            Err(ImportError::Apart { path: shown.to_path_buf() })
        }
        _ => Ok(()),
    }
}

/// The path of a name below `above`, if a manifest can have it.
fn part(path: &Path, name: &std::ffi::OsStr, above: &str) -> Result<String, ImportError> {
    let refuse = |why: String| ImportError::Name { path: path.to_path_buf(), why };
    let name = name.to_str().ok_or_else(|| refuse("the name is not UTF-8".into()))?;
    let whole = if above.is_empty() { name.to_owned() } else { format!("{above}/{name}") };
    match check_path(&whole) {
        Ok(()) => Ok(whole),
        Err(ManifestError::Path { why, .. }) => Err(refuse(why.to_owned())),
        Err(error) => Err(refuse(error.to_string())),
    }
}

fn source(file: PathBuf, shown: &Path, meta: &Metadata) -> Result<Source, ImportError> {
    let kind = meta.file_type();
    let what = match () {
        () if kind.is_file() => {
            let executable = meta.mode() & 0o111 != 0;
            return Ok(Source { file, executable, stamp: Stamp::of(meta) });
        }
        () if kind.is_fifo() => "a fifo",
        () if kind.is_socket() => "a socket",
        () if kind.is_block_device() || kind.is_char_device() => "a device",
        () => "of an unknown kind",
    };
    Err(ImportError::Special { path: shown.to_path_buf(), what })
}
