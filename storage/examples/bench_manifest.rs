//! How long it takes to decode and check a manifest of a million entries.
//!
//! `cargo run --release -p mesh-storage --example bench_manifest [ENTRIES]`
#![expect(clippy::disallowed_methods, reason = "a measuring tool reads the clock")]

use std::time::Instant;

use mesh_consensus::id::Hash;
use mesh_storage::chunk::Chunk;
use mesh_storage::manifest::{Entry, Kind, Manifest, Object};

/// Files in a pack.
const PACK: usize = 512;

fn main() {
    let entries: usize =
        std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    for (name, letters) in [("ascii", "img"), ("other letters", "écran")] {
        let mut manifest = Manifest::default();
        for at in 0..entries {
            let path = format!("train/N{:04}/{letters}_{at:09}.JPEG", at / 1300);
            let hash = Hash::of(&at.to_le_bytes());
            let (object, place) = ((at / PACK) as u32, (at % PACK) as u64);
            let kind = Kind::File {
                executable: false,
                object,
                offset: 5000 * place,
                bytes: 5000,
                content: Some(hash),
            };
            if place == 0 {
                manifest.objects.push(Object { chunks: vec![Chunk { id: hash, bytes: 0 }] });
            }
            manifest.objects[object as usize].chunks[0].bytes += 5000;
            manifest.entries.push(Entry { path, kind });
        }
        let begin = Instant::now();
        manifest.check().expect("it is a good manifest");
        let check = begin.elapsed();
        let bytes = manifest.encode();
        let begin = Instant::now();
        Manifest::decode(&bytes).expect("it is a good manifest");
        let decode = begin.elapsed();
        println!(
            "{name}: {entries} entries, {} bytes: check {check:?}, decode with check {decode:?}",
            bytes.len(),
        );
    }
}
