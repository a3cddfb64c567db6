//! Images that were pushed into the mesh: any node loads them from its peers, without a registry.
//!
//! A version `image.NAME` holds two files: `image.tar`, which is what `docker save` writes, and `id`, the image's own
//! id. Chunks are cut by content, so two images with a layer in common share its bytes, and a node that has one
//! fetches only what is new of the other. Docker has its own copy: once it knows the image by its id, nothing is loaded.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use mesh_consensus::id::VersionId;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::watch;

use super::attempt::remove;
use super::fetch::lay_out;
use crate::data::Data;
use crate::data::push::{COPIES, Cancel, Progress, PushError, Pushed, Wish};
use crate::executor::docker::{Docker, DockerError};
use crate::handle::Handle;
use crate::state::data::{DataRef, Lineage, Note, Pick};
use crate::state::jobs::{Exit, note};
use crate::state::name::Name;

const TAR: &str = "image.tar";
const ID: &str = "id";
/// How the names of such versions begin.
pub const PREFIX: &str = "image.";

/// Why an image was not pushed.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// There is no daemon.
    #[error("no Docker answers on this node")]
    NoDocker,
    /// Docker does not have it.
    #[error("Docker has no image {0} here")]
    Absent(String),
    /// It cannot be named so.
    #[error("{0:?} cannot be the name of an image in the mesh")]
    Name(String),
    /// Docker said no.
    #[error(transparent)]
    Docker(#[from] DockerError),
    /// The disk said no.
    #[error("the image could not be stored")]
    Io(#[from] io::Error),
    /// The push.
    #[error(transparent)]
    Push(#[from] PushError),
}

/// How a name of data writes what only an image's name can hold. No image's name holds these itself.
const SLASH: &str = "..";
const COLON: &str = "._.";

/// The data under which an image is kept. `None` for a name that does not fit: one with capital letters or a digest, or
/// a long one.
pub fn data_name(image: &str) -> Option<Name> {
    if image.is_empty() {
        return None;
    }
    let written = image.replace('/', SLASH).replace(':', COLON);
    let name: Name = format!("{PREFIX}{written}").parse().ok()?;
    (image_name(name.as_str()).as_deref() == Some(image)).then_some(name)
}

/// The image that is kept under a name of data, if that is one.
pub fn image_name(data: &str) -> Option<String> {
    Some(data.strip_prefix(PREFIX)?.replace(COLON, ":").replace(SLASH, "/"))
}

/// The version of an image that was pushed, if one was.
pub async fn find(data: &Data, image: &str) -> Option<VersionId> {
    let name = data_name(image)?;
    let found = data.resolve(&DataRef { party: None, name, pick: Pick::Latest }).await.ok()?;
    Some(found.id)
}

/// Makes an image of this node's Docker a version.
pub async fn push(
    handle: &Handle,
    image: &str,
    progress: &watch::Sender<Progress>,
) -> Result<Pushed, ImageError> {
    let name = data_name(image).ok_or_else(|| ImageError::Name(image.to_owned()))?;
    let docker = handle.executor.docker().await.ok_or(ImageError::NoDocker)?;
    let found = docker.image(image).await?;
    let found = found.ok_or_else(|| ImageError::Absent(image.to_owned()))?;
    let dir = Scratch::new(handle)?;
    tokio::fs::write(dir.path().join(ID), &found.id).await?;
    let mut file = tokio::fs::File::create(dir.path().join(TAR)).await?;
    let mut parts = std::pin::pin!(docker.save(image));
    let mut bytes = 0;
    while let Some(part) = parts.next().await {
        let part = part?;
        file.write_all(&part).await?;
        bytes += part.len() as u64;
        progress.send_modify(|progress| progress.bytes = bytes);
    }
    file.flush().await?;
    drop(file);
    let wish = Wish {
        path: dir.path().to_path_buf(),
        name,
        visibility: None,
        copies: COPIES,
        in_place: false,
        follow: false,
        // It is in the node's own directory, and nobody else's to choose.
        apart: None,
        no_wait: false,
        lineage: Lineage::default(),
        note: Note::default(),
    };
    let cancel = Cancel(Arc::new(AtomicBool::new(false)));
    Ok(handle.data.push(wish, progress, cancel.0.clone()).await?)
}

/// Makes this node's Docker know an image that was pushed. Gives the name by which it does.
pub(super) async fn load(
    handle: &Handle,
    docker: &Docker,
    name: &str,
    version: VersionId,
) -> Result<String, Exit> {
    let what = format!("the image {name}");
    let unable = |error: &dyn std::error::Error| {
        Exit::Unable(note(&format!("{what}: {}", crate::data::chain(error))))
    };
    let dir = Scratch::new(handle).map_err(|error| unable(&error))?;
    let files = dir.path().join("files");
    lay_out(handle, version, &files, false).await.map_err(|why| why.of(&what))?;
    let id = tokio::fs::read_to_string(files.join(ID)).await.map_err(|error| unable(&error))?;
    let has = |docker: Docker, id: String| async move { docker.image(&id).await };
    if has(docker.clone(), id.clone()).await.map_err(|error| unable(&error))?.is_some() {
        return Ok(id);
    }
    let file = tokio::fs::File::open(files.join(TAR)).await.map_err(|error| unable(&error))?;
    let tar = tokio_util::io::ReaderStream::with_capacity(file, 1 << 20).map_ok(Bytes::from);
    docker.load(tar).await.map_err(|error| unable(&error))?;
    match has(docker.clone(), id.clone()).await.map_err(|error| unable(&error))? {
        Some(_) => Ok(id),
        None => Err(Exit::Cannot(note(&format!("{what} is not what it says")))),
    }
}

/// A directory for a moment, beside the attempts'. It goes when nobody needs it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(handle: &Handle) -> io::Result<Self> {
        let name = data_encoding::HEXLOWER.encode(&crate::random::<8>());
        let path = handle.work.root.join(".scratch").join(name);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_a_name_as_data() {
        for image in ["python:3.12", "python", "team/base-cuda:12.4_1", "host:5000/a/b:c"] {
            let name = data_name(image).unwrap();
            assert_eq!(image_name(name.as_str()).as_deref(), Some(image), "{name}");
        }
        assert_eq!(data_name("python:3.12").unwrap().as_str(), "image.python._.3.12");
        for bad in ["Python", "a@sha256:ab", "", "a..b", &"x".repeat(80)] {
            assert!(data_name(bad).is_none(), "{bad}");
        }
    }
}
