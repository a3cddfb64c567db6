//! The code that goes along with a job: what of a directory is taken, in a copy that nobody changes meanwhile.
//!
//! The copy is gone when [`Packed`] is dropped, also if somebody presses Ctrl-C while it is made: what is dropped half-way
//! stops the work, and the work takes its directory along.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::TempDir;

use super::ignore::Ignore;
use crate::report::{Code, Report};
use crate::view::bytes;

/// The file that says what stays behind.
const IGNORE: &str = ".meshignore";
/// What is never code.
const NEVER: &str = ".git";
/// What the files of a node's directory are called, all of which are there.
const NODE: [&str; 2] = ["VERSION", "node.key"];

/// How much may go along.
#[derive(Debug, Clone, Copy)]
struct Limits {
    bytes: u64,
    files: usize,
}

/// Code that is more than this is data, and data is pushed once and not with every job.
const LIMITS: Limits = Limits { bytes: 512 << 20, files: 100_000 };

/// A copy of the code. It goes when this is dropped.
#[derive(Debug)]
pub(super) struct Packed {
    dir: TempDir,
    /// How many files there are in it.
    pub(super) files: usize,
    /// How much they hold.
    pub(super) bytes: u64,
    /// Directories of nodes that stayed behind.
    pub(super) nodes: Vec<String>,
}

impl Packed {
    /// Where it is.
    pub(super) fn path(&self) -> Result<&str, Report> {
        self.dir.path().to_str().ok_or_else(|| {
            let cause = format!("{} is not UTF-8", self.dir.path().display());
            unpackable(cause, "point TMPDIR at another directory")
        })
    }
}

/// Makes a copy of what of a directory goes along. `private` never does.
pub(super) async fn pack(root: PathBuf, private: Vec<PathBuf>) -> Result<Packed, Report> {
    apart(move |cancel| list(&root, &private, LIMITS, cancel)?.copy(cancel)).await
}

/// How many files would go along, and how much they hold.
pub(super) async fn look(root: PathBuf, private: Vec<PathBuf>) -> Result<(usize, u64), Report> {
    let listed = apart(move |cancel| list(&root, &private, LIMITS, cancel)).await?;
    Ok((listed.files.len(), listed.bytes))
}

/// Does work that may take long on a thread of its own. If nobody waits for it any more, it is told to stop.
async fn apart<T: Send + 'static>(
    work: impl FnOnce(&AtomicBool) -> Result<T, Report> + Send + 'static,
) -> Result<T, Report> {
    struct Stop(Arc<AtomicBool>);
    impl Drop for Stop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = Stop(Arc::default());
    let cancel = stop.0.clone();
    let done = tokio::task::spawn_blocking(move || work(&cancel)).await;
    done.unwrap_or_else(|error| Err(unpackable(error.to_string(), "the same command again")))
}

/// What of a directory goes along.
#[derive(Debug)]
struct Listing {
    /// From the top, each after the one that it is in.
    directories: Vec<PathBuf>,
    files: Vec<Found>,
    bytes: u64,
    nodes: Vec<String>,
}

#[derive(Debug)]
struct Found {
    /// From the top.
    path: PathBuf,
    /// What is read: for a symbolic link, what it leads to.
    from: PathBuf,
}

fn list(
    root: &Path,
    private: &[PathBuf],
    limits: Limits,
    cancel: &AtomicBool,
) -> Result<Listing, Report> {
    if let Some(node) = root.ancestors().find(|path| is_a_nodes(path)) {
        let cause = format!("it is in the directory of a node, {}, with its keys", node.display());
        return Err(unpackable(cause, "put the job and its code into a directory of their own"));
    }
    let ignore = rules(root)?;
    let mut listing =
        Listing { directories: Vec::new(), files: Vec::new(), bytes: 0, nodes: Vec::new() };
    // Which part of the top directory holds how much, to name the largest.
    let mut parts: Vec<(String, u64)> = Vec::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(directory) = waiting.pop() {
        let here = root.join(&directory);
        for entry in fs::read_dir(&here).map_err(|error| unreadable(&here, &error))? {
            check(cancel)?;
            let entry = entry.map_err(|error| unreadable(&here, &error))?;
            let path = directory.join(entry.file_name());
            let Some(words) = words(&path) else {
                let cause = format!("the name of {} is not UTF-8", path.display());
                return Err(leave_it(cause));
            };
            let kind = entry.file_type().map_err(|error| unreadable(&entry.path(), &error))?;
            if words.last() == Some(&NEVER) || ignore.leaves(&words, kind.is_dir()) {
                continue;
            }
            if kind.is_dir() {
                if is_a_nodes(&entry.path()) {
                    listing.nodes.push(path.display().to_string());
                    continue;
                }
                listing.directories.push(path.clone());
                waiting.push(path);
                continue;
            }
            let from = if kind.is_symlink() { target(root, &path)? } else { entry.path() };
            if private.contains(&from) {
                continue;
            }
            let meta = fs::metadata(&from).map_err(|error| unreadable(&from, &error))?;
            if !meta.is_file() {
                let what = special(meta.file_type());
                return Err(leave_it(format!("{} is {what}", path.display())));
            }
            listing.bytes = listing.bytes.saturating_add(meta.len());
            match parts.iter_mut().find(|(part, _)| *part == words[0]) {
                Some((_, size)) => *size = size.saturating_add(meta.len()),
                None => parts.push((words[0].to_owned(), meta.len())),
            }
            listing.files.push(Found { path, from });
            if listing.bytes > limits.bytes || listing.files.len() > limits.files {
                return Err(too_much(&listing, limits, &parts));
            }
        }
    }
    Ok(listing)
}

impl Listing {
    fn copy(self, cancel: &AtomicBool) -> Result<Packed, Report> {
        let dir = tempfile::Builder::new().prefix("mesh-code-").tempdir().map_err(|error| {
            let cause = format!("a temporary directory cannot be made: {error}");
            unpackable(cause, "point TMPDIR at a directory with room")
        })?;
        let unwritten = |path: &Path, error: &io::Error| {
            let cause = format!("{}: {error}", path.display());
            unpackable(cause, "point TMPDIR at a directory with room")
        };
        for path in &self.directories {
            check(cancel)?;
            fs::create_dir(dir.path().join(path)).map_err(|error| unwritten(path, &error))?;
        }
        for Found { path, from } in &self.files {
            check(cancel)?;
            let to = dir.path().join(path);
            fs::copy(from, &to).map_err(|error| unwritten(path, &error))?;
        }
        let Self { files, bytes, nodes, .. } = self;
        Ok(Packed { dir, files: files.len(), bytes, nodes })
    }
}

fn rules(root: &Path) -> Result<Ignore, Report> {
    let path = root.join(IGNORE);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Ignore::parse(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Ignore::default()),
        Err(error) => Err(unreadable(&path, &error)),
    }
}

/// The parts of a path; `None` if one of them is not UTF-8.
fn words(path: &Path) -> Option<Vec<&str>> {
    path.iter().map(|part| part.to_str()).collect()
}

/// Whether a directory is a node's: its keys are nobody's code.
fn is_a_nodes(path: &Path) -> bool {
    NODE.iter().all(|name| path.join(name).is_file())
}

/// What a symbolic link leads to, if that can go along in its place.
fn target(root: &Path, path: &Path) -> Result<PathBuf, Report> {
    let shown = path.display();
    let Ok(target) = root.join(path).canonicalize() else {
        return Err(leave_it(format!("{shown} is a symbolic link that leads nowhere")));
    };
    if !target.starts_with(root) {
        return Err(leave_it(format!(
            "{shown} is a symbolic link that leads out of the directory"
        )));
    }
    if target.is_dir() {
        return Err(leave_it(format!("{shown} is a symbolic link to a directory")));
    }
    Ok(target)
}

fn special(kind: fs::FileType) -> &'static str {
    match () {
        () if kind.is_fifo() => "a fifo",
        () if kind.is_socket() => "a socket",
        () if kind.is_block_device() || kind.is_char_device() => "a device",
        () => "no file",
    }
}

fn check(cancel: &AtomicBool) -> Result<(), Report> {
    if !cancel.load(Ordering::Relaxed) {
        return Ok(());
    }
    let cause = "it was asked to stop before it was done";
    Err(Report::new(Code::Interrupted, "interrupted", cause, "the same command again"))
}

fn too_much(listing: &Listing, limits: Limits, parts: &[(String, u64)]) -> Report {
    let most = if listing.bytes > limits.bytes {
        bytes(limits.bytes)
    } else {
        format!("{} files", limits.files)
    };
    let largest = parts.iter().max_by_key(|(_, size)| *size);
    let (part, size) = largest.map_or(("it", 0), |(part, size)| (part.as_str(), *size));
    Report::new(
        Code::Refused,
        format!("the code of the job is more than {most}"),
        format!("{} of it is in {part}", bytes(size)),
        format!("name {part} in {IGNORE}; if the job needs it, mesh data push {part} and [data]"),
    )
}

fn unreadable(path: &Path, error: &io::Error) -> Report {
    leave_it(format!("{}: {error}", path.display()))
}

/// Something that cannot go along.
fn leave_it(cause: String) -> Report {
    unpackable(cause, "name what is not needed in .meshignore")
}

fn unpackable(cause: impl Into<String>, hint: &str) -> Report {
    Report::new(Code::Failed, "the code of the job cannot be packed", cause, hint)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    static GOING: AtomicBool = AtomicBool::new(false);

    /// A directory with these files in it, each with its own path as its content.
    fn directory(files: &[&str]) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        dir
    }

    fn packed(dir: &Path, private: &[&str]) -> Result<Packed, Report> {
        let root = dir.canonicalize().unwrap();
        let private: Vec<PathBuf> = private.iter().map(|path| root.join(path)).collect();
        list(&root, &private, LIMITS, &GOING)?.copy(&GOING)
    }

    /// What is in a copy: paths with contents, directories with a slash and nothing.
    fn content(packed: &Packed) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        let mut waiting = vec![packed.dir.path().to_owned()];
        while let Some(here) = waiting.pop() {
            for entry in fs::read_dir(here).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(packed.dir.path()).unwrap().display().to_string();
                if path.is_dir() {
                    found.insert(format!("{name}/"), String::new());
                    waiting.push(path);
                } else {
                    found.insert(name, fs::read_to_string(path).unwrap());
                }
            }
        }
        found
    }

    #[test]
    fn what_is_not_ignored_goes_along_and_nothing_else() {
        let dir = directory(&[
            "train.py",
            "lib/a.py",
            "lib/.git/HEAD",
            ".git/config",
            "runs/1/model.ckpt",
            "lib/b.ckpt",
            "job.toml",
            "token.txt",
        ]);
        fs::write(dir.path().join(".meshignore"), "runs/\n*.ckpt\n").unwrap();
        fs::create_dir(dir.path().join("empty")).unwrap();
        let packed = packed(dir.path(), &["job.toml", "token.txt"]).unwrap();
        let names: Vec<String> = content(&packed).into_keys().collect();
        assert_eq!(names, [".meshignore", "empty/", "lib/", "lib/a.py", "train.py"]);
        assert_eq!(content(&packed)["lib/a.py"], "lib/a.py");
        assert_eq!((packed.files, packed.bytes), (3, 13 + 8 + 8));
    }

    #[test]
    fn the_copy_goes_when_nobody_needs_it() {
        let dir = directory(&["a"]);
        let packed = packed(dir.path(), &[]).unwrap();
        let path = packed.path().unwrap().to_owned();
        assert!(Path::new(&path).join("a").is_file());
        drop(packed);
        assert!(!Path::new(&path).exists());
    }

    #[test]
    fn a_program_stays_one() {
        let dir = directory(&["run.sh", "data.txt"]);
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o111;
        fs::set_permissions(dir.path().join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
        let packed = packed(dir.path(), &[]).unwrap();
        assert_ne!(mode(&packed.dir.path().join("run.sh")), 0);
        assert_eq!(mode(&packed.dir.path().join("data.txt")), 0);
    }

    #[test]
    fn links_are_taken_for_what_they_lead_to_within_the_directory() {
        let dir = directory(&["a/real.txt", "secret"]);
        symlink("a/real.txt", dir.path().join("link")).unwrap();
        let absolute = dir.path().canonicalize().unwrap().join("a/real.txt");
        symlink(absolute, dir.path().join("absolute")).unwrap();
        symlink("secret", dir.path().join("to-secret")).unwrap();
        let found = content(&packed(dir.path(), &["secret"]).unwrap());
        assert_eq!((&*found["link"], &*found["absolute"]), ("a/real.txt", "a/real.txt"));
        assert!(!found.contains_key("secret") && !found.contains_key("to-secret"), "{found:?}");
        for (target, cause) in [("/", "out of"), ("nowhere", "nowhere"), ("a", "to a directory")] {
            let link = dir.path().join("bad");
            symlink(target, &link).unwrap();
            let report = packed(dir.path(), &["secret"]).unwrap_err();
            assert!(report.cause.contains("bad") && report.cause.contains(cause), "{report:?}");
            assert!(report.hint.contains(".meshignore"), "{report:?}");
            fs::write(dir.path().join(".meshignore"), "bad\n").unwrap();
            assert!(packed(dir.path(), &["secret"]).is_ok());
            fs::remove_file(dir.path().join(".meshignore")).unwrap();
            fs::remove_file(&link).unwrap();
        }
    }

    #[test]
    fn what_is_no_file_is_named() {
        let dir = directory(&["a"]);
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("s")).unwrap();
        let report = packed(dir.path(), &[]).unwrap_err();
        assert_eq!(report.cause, "s is a socket");
    }

    #[test]
    fn too_much_is_refused_with_what_is_largest() {
        let dir = directory(&["train.py", "data/images.bin", "data/labels.bin"]);
        let root = dir.path().canonicalize().unwrap();
        let refused = |limits| list(&root, &[], limits, &GOING).unwrap_err();
        let report = refused(Limits { bytes: 25, files: 100 });
        assert_eq!(report.code, Code::Refused);
        assert_eq!(report.message, "the code of the job is more than 25 B");
        assert!(report.hint.contains("mesh data push data"), "{report:?}");
        let report = refused(Limits { bytes: 1000, files: 2 });
        assert!(report.message.contains("more than 2 files"), "{report:?}");
    }

    #[test]
    fn the_keys_of_a_node_are_nobodys_code() {
        let dir = directory(&["a.py", "n0/VERSION", "n0/node.key", "n0/store/x", "n1/VERSION"]);
        let packed = packed(dir.path(), &[]).unwrap();
        let names: Vec<String> = content(&packed).into_keys().collect();
        assert_eq!(names, ["a.py", "n1/", "n1/VERSION"]);
        assert_eq!(packed.nodes, ["n0"]);
        let report = self::packed(&dir.path().join("n0/store"), &[]).unwrap_err();
        assert!(report.cause.contains("directory of a node"), "{report:?}");
    }

    #[test]
    fn whoever_stops_waiting_stops_the_work() {
        let dir = directory(&["a"]);
        let root = dir.path().canonicalize().unwrap();
        let report = list(&root, &[], LIMITS, &AtomicBool::new(true)).unwrap_err();
        assert_eq!(report.code, Code::Interrupted);
        let listing = list(&root, &[], LIMITS, &GOING).unwrap();
        assert!(listing.copy(&AtomicBool::new(true)).is_err());
    }

    #[test]
    fn work_on_its_own_thread_hears_that_nobody_waits() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (send, ended) = std::sync::mpsc::sync_channel(1);
        runtime.block_on(async {
            let work = apart(move |cancel| {
                while !cancel.load(Ordering::Relaxed) {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                send.send(()).unwrap();
                Ok(())
            });
            let waited = tokio::time::timeout(std::time::Duration::from_millis(20), work).await;
            assert!(waited.is_err());
        });
        ended.recv_timeout(std::time::Duration::from_secs(10)).unwrap();
    }
}
