//! How long it takes to lay out a tree: small files out of packs, and links to objects.
//!
//! `cargo run --release -p mesh-storage --example bench_tree DIRECTORY [FILES]`
#![expect(clippy::disallowed_methods, reason = "a measuring tool reads the clock")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use mesh_consensus::id::{Hash, ObjectId};
use mesh_storage::chunk::{Chunk, cut};
use mesh_storage::manifest::{Entry, Kind, Manifest, Object};
use mesh_storage::tree::{ObjectFile, Options, Source, materialise};

/// Bytes of a small file.
const SMALL: usize = 4096;
/// Files in a pack.
const PACK: usize = 4096;

struct Store(BTreeMap<ObjectId, PathBuf>);

impl Source for Store {
    fn object(&self, id: ObjectId) -> io::Result<ObjectFile> {
        let path = self.0.get(&id).ok_or(io::ErrorKind::NotFound)?.clone();
        Ok(ObjectFile { file: File::open(&path)?, path, may_link: true })
    }
}

impl Store {
    fn keep(&mut self, dir: &Path, content: &[u8]) -> io::Result<Object> {
        let (mut chunks, mut rest) = (Vec::new(), content);
        while !rest.is_empty() {
            let (chunk, tail) = rest.split_at(cut((content.len() - rest.len()) as u64, rest));
            chunks.push(Chunk { id: Hash::of(chunk), bytes: chunk.len() as u32 });
            rest = tail;
        }
        let object = Object { chunks };
        let path = dir.join(object.id().to_string());
        fs::write(&path, content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444))?;
        self.0.insert(object.id(), path);
        Ok(object)
    }
}

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let base = PathBuf::from(arguments.next().unwrap_or_else(|| ".".into())).join("bench-tree");
    let files = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(50_000);
    fs::create_dir_all(base.join("store"))?;
    for (name, packed) in [("small", true), ("links", false)] {
        let mut store = Store(BTreeMap::new());
        let mut manifest = Manifest::default();
        let mut pack = Vec::new();
        for at in 0..files {
            let mut content = vec![0; SMALL];
            fastrand::Rng::with_seed(at as u64).fill(&mut content);
            let hash = packed.then(|| Hash::of(&content));
            let kind = Kind::File {
                executable: false,
                object: manifest.objects.len() as u32,
                offset: pack.len() as u64,
                bytes: SMALL as u64,
                content: hash,
            };
            let path = format!("train/{:04}/{at:08}.png", at / 1000);
            manifest.entries.push(Entry { path, kind });
            pack.extend(content);
            if !packed || pack.len() == SMALL * PACK || at == files - 1 {
                manifest.objects.push(store.keep(&base.join("store"), &pack)?);
                pack.clear();
            }
        }
        manifest.check().map_err(io::Error::other)?;
        rustix::fs::sync();
        for run in ["first", "again"] {
            let begin = Instant::now();
            let done = materialise(&manifest, &base.join(name), &store, Options::default())
                .map_err(io::Error::other)?;
            println!(
                "{name}, {run}: {files} files of {SMALL} bytes: {:?}, {done:?}",
                begin.elapsed()
            );
        }
    }
    fs::remove_dir_all(base)
}
