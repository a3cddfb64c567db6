//! Objects as whole files, for [`crate::tree`].
//!
//! A file that is handed out was compared with its name, by this process and since it was last touched: a bit that
//! flipped on the disk is found here, and the object goes into quarantine instead.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mesh_consensus::id::{Hash, ObjectId};
use mesh_consensus::time::Time;

use super::files::Stamp;
use super::{Loaded, Store, StoreError, lock};
use crate::tree::{ObjectFile, Source};

/// The objects of one manifest.
pub struct Objects {
    store: Store,
    loaded: Arc<Loaded>,
    places: BTreeMap<ObjectId, usize>,
    now: Time,
    cancel: Option<Arc<AtomicBool>>,
}

impl Store {
    /// Where the store is.
    pub fn root(&self) -> &Path {
        self.inner.files.root()
    }

    /// Lets go of the directory: from here on everything fails, whoever has a handle still.
    pub fn close(&self) {
        self.inner.index.close();
        *lock(&self.inner.lock) = None;
    }

    /// Whether a manifest is claimed here and none of its objects was lost since.
    pub fn is_whole(&self, hash: Hash) -> Result<bool, StoreError> {
        Ok(self.has(hash)? && self.lost_objects(hash)? == 0)
    }

    /// How many objects of a manifest that is claimed here were lost since: damaged, or gone.
    pub fn lost_objects(&self, hash: Hash) -> Result<usize, StoreError> {
        let mut lost = 0;
        for id in self.load(hash)?.objects() {
            lost += usize::from(self.inner.index.holds(*id)?.is_none());
        }
        Ok(lost)
    }

    /// Counts the objects that were here and turned out to be damaged or gone, since the store was opened.
    pub fn losses(&self) -> u64 {
        self.inner.losses.load(Ordering::Relaxed)
    }

    /// What lies in quarantine: how many files, and how many bytes.
    pub fn quarantined(&self) -> Result<(u64, u64), StoreError> {
        let (mut count, mut bytes) = (0, 0);
        for name in self.inner.files.names(&self.root().join("quarantine"))? {
            // One that has gone meanwhile takes no room.
            if let Ok(meta) = fs::metadata(self.inner.files.quarantine(&name)) {
                count += 1;
                bytes += meta.len();
            }
        }
        Ok((count, bytes))
    }

    /// The objects of a manifest that is here, each verified when it is asked for.
    pub fn objects(&self, loaded: &Arc<Loaded>, now: Time) -> Objects {
        let all = loaded.objects().iter().enumerate();
        let places = all.map(|(place, id)| (*id, place)).collect();
        Objects { store: self.clone(), loaded: loaded.clone(), places, now, cancel: None }
    }
}

impl Source for Objects {
    fn object(&self, id: ObjectId) -> io::Result<ObjectFile> {
        let object = self.places.get(&id).copied();
        let object = object.ok_or_else(|| io::Error::other(StoreError::Missing(id)))?;
        let path = self.store.inner.files.object(id);
        match File::open(&path) {
            Ok(file) => {
                self.verify(object, Stamp::of(&file.metadata()?))?;
                Ok(ObjectFile { file, path, may_link: true })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.gather(object, id),
            Err(error) => Err(error),
        }
    }
}

impl Objects {
    /// Once `cancel` is true, whoever waits for an object to be verified need not wait for its end.
    pub fn until(self, cancel: Arc<AtomicBool>) -> Self {
        Self { cancel: Some(cancel), ..self }
    }

    fn go_on(&self) -> io::Result<()> {
        match &self.cancel {
            Some(cancel) if cancel.load(Ordering::Relaxed) => {
                Err(io::ErrorKind::Interrupted.into())
            }
            _ => Ok(()),
        }
    }

    fn verify(&self, object: usize, stamp: Stamp) -> io::Result<()> {
        for number in self.loaded.numbers(object) {
            self.go_on()?;
            let place = self.loaded.place(number).map_err(io::Error::other)?;
            if !self.store.trusts(&place, stamp, self.now) {
                self.store.read_chunk(&self.loaded, number, self.now).map_err(io::Error::other)?;
            }
        }
        Ok(())
    }

    /// An object that is in files of the user: one of them, or what they hold one after another.
    fn gather(&self, object: usize, id: ObjectId) -> io::Result<ObjectFile> {
        let bytes = self.loaded.manifest().objects[object].bytes();
        let index = &self.store.inner.index;
        let segments = index
            .segments(id, 0, bytes)
            .map_err(|error| io::Error::other(StoreError::from(error)))?;
        if let [(0, segment)] = segments.as_slice()
            && segment.stamp.bytes == bytes
        {
            let path = Path::new(OsStr::from_bytes(&segment.path)).to_path_buf();
            let file = File::open(&path)?;
            self.verify(object, Stamp::of(&file.metadata()?))?;
            return Ok(ObjectFile { file, path, may_link: false });
        }
        let path = self.store.inner.files.temporary();
        let mut file = File::options().read(true).write(true).create_new(true).open(&path)?;
        // Its name is not needed, and so nothing is left of it.
        fs::remove_file(&path)?;
        for number in self.loaded.numbers(object) {
            self.go_on()?;
            let bytes = self.store.read_chunk(&self.loaded, number, self.now);
            file.write_all(&bytes.map_err(io::Error::other)?)?;
        }
        Ok(ObjectFile { file, path, may_link: false })
    }
}
