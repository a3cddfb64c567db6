//! Who lays out a version in which directory here, and whether anybody still waits for it.
//!
//! A run holds its directory until it has noticed that it is to end, and while it syncs it notices nothing. So whoever
//! comes to the same directory next may find it taken by a run that nobody wants any more.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::lock;

/// The runs under way. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Laying(Arc<Mutex<Vec<Taken>>>);

/// A directory, and what says that nobody waits for it any more.
struct Taken {
    dir: PathBuf,
    cancel: Arc<AtomicBool>,
}

/// One of the runs, until it is dropped.
pub(super) struct Run {
    all: Laying,
    cancel: Arc<AtomicBool>,
}

impl Laying {
    /// A run begins, or tries to. `cancel` says that nobody waits for it, and is its own.
    pub(super) fn enter(&self, dir: &Path, cancel: &Arc<AtomicBool>) -> Run {
        lock(&self.0).push(Taken { dir: dir.to_path_buf(), cancel: cancel.clone() });
        Run { all: self.clone(), cancel: cancel.clone() }
    }

    /// Whether the directory is taken by runs of this node that nobody waits for any more, and by no other.
    pub(super) fn is_forsaken(&self, dir: &Path) -> bool {
        let all = lock(&self.0);
        let mut here = all.iter().filter(|taken| taken.dir == dir).peekable();
        here.peek().is_some() && here.all(|taken| taken.cancel.load(Ordering::Relaxed))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        lock(&self.all.0).retain(|taken| !Arc::ptr_eq(&taken.cancel, &self.cancel));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_forsaken_while_nobody_waits_for_those_who_have_it() {
        let (laying, dir) = (Laying::default(), Path::new("/w"));
        let [first, second] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        assert!(!laying.is_forsaken(dir));
        let run = laying.enter(dir, &first);
        assert!(!laying.is_forsaken(dir));
        first.store(true, Ordering::Relaxed);
        assert!(laying.is_forsaken(dir) && !laying.is_forsaken(Path::new("/v")));
        let other = laying.enter(dir, &second);
        assert!(!laying.is_forsaken(dir), "somebody waits for the second");
        drop(other);
        assert!(laying.is_forsaken(dir));
        drop(run);
        assert!(!laying.is_forsaken(dir));
    }
}
