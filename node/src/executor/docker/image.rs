//! Images: which are there, and how they come and go. A tar file is what `docker save` writes.

use std::collections::BTreeMap;
use std::io;
use std::pin::pin;
use std::time::Duration;

use bollard::errors::Error;
use bollard::models::ImageInspect;
use bollard::query_parameters::{
    CreateImageOptionsBuilder, ImportImageOptionsBuilder, ListImagesOptionsBuilder,
    RemoveImageOptionsBuilder,
};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use tokio::time::timeout;

use super::{Docker, DockerError};

/// A registry that says nothing for so long is given up.
const SILENCE: Duration = Duration::from_secs(60);

/// An image that the daemon has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// `sha256:…`: two with one id are the same.
    pub id: String,
    /// The names that it has here: `python:3.12`.
    pub names: Vec<String>,
    /// How large it is.
    pub bytes: u64,
    /// Whom its programs run as; empty for root. Not told in lists.
    pub user: String,
}

/// How far a pull has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pulled {
    /// What has arrived.
    pub bytes: u64,
    /// Of how much, as far as that is known.
    pub of: u64,
}

impl Docker {
    /// All images that have a name.
    pub async fn images(&self) -> Result<Vec<Image>, DockerError> {
        let found = self.api.list_images(Some(ListImagesOptionsBuilder::new().build())).await?;
        let named = found.into_iter().map(|image| Image {
            id: image.id,
            names: image.repo_tags.into_iter().filter(|name| name != "<none>:<none>").collect(),
            bytes: u64::try_from(image.size).unwrap_or(0),
            user: String::new(),
        });
        Ok(named.filter(|image| !image.names.is_empty()).collect())
    }

    /// An image by name or id; `None` if it is not there. Asks nobody but the daemon.
    pub async fn image(&self, name: &str) -> Result<Option<Image>, DockerError> {
        match self.api.inspect_image(name).await {
            Ok(image) => Ok(Some(seen(image))),
            Err(Error::DockerResponseServerError { status_code: 404, .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// An image as a tar file.
    pub fn save(
        &self,
        name: &str,
    ) -> impl Stream<Item = Result<Bytes, DockerError>> + Send + use<> {
        let (api, name) = (self.api.clone(), name.to_owned());
        let parts = api.export_image(&name).boxed();
        parts.map(move |part| part.map_err(|error| absent(&name, error)))
    }

    /// Takes in a tar file, and tells the names of the images that were in it; ids of those without a name.
    pub async fn load(
        &self,
        tar: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<Vec<String>, DockerError> {
        let options = ImportImageOptionsBuilder::new().quiet(true).build();
        let mut told = pin!(self.api.import_image_stream(options, tar, None));
        let mut names = Vec::new();
        while let Some(line) = told.next().await {
            names.extend(line?.stream.as_deref().and_then(loaded));
        }
        Ok(names)
    }

    /// Has the daemon fetch an image from where its name says.
    pub async fn pull(&self, name: &str, mut on: impl FnMut(Pulled)) -> Result<(), DockerError> {
        let options = CreateImageOptionsBuilder::new().from_image(&tagged(name)).build();
        let mut told = pin!(self.api.create_image(Some(options), None, None));
        let mut layers: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        loop {
            let line = match timeout(SILENCE, told.next()).await {
                Ok(Some(line)) => line.map_err(|error| absent(name, error))?,
                Ok(None) => return Ok(()),
                Err(_) => {
                    let silent = format!("nothing came of {name} for {} s", SILENCE.as_secs());
                    return Err(DockerError::Refused(silent));
                }
            };
            let (Some(layer), Some(detail)) = (line.id, line.progress_detail) else { continue };
            let (Some(bytes), Some(of)) = (detail.current, detail.total) else { continue };
            // Unpacking counts from the start again: what has arrived has arrived.
            let known = layers.entry(layer).or_default();
            let count = |value: i64| u64::try_from(value).unwrap_or(0);
            *known = (known.0.max(count(bytes)), known.1.max(count(of)));
            let sum = layers.values().fold(Pulled::default(), |sum, (bytes, of)| Pulled {
                bytes: sum.bytes.saturating_add(*bytes),
                of: sum.of.saturating_add(*of),
            });
            on(sum);
        }
    }

    /// Takes a name off an image, and the image away if it was the last.
    pub async fn remove_image(&self, name: &str) -> Result<(), DockerError> {
        let options = RemoveImageOptionsBuilder::new().build();
        let removed = self.api.remove_image(name, Some(options), None).await;
        removed.map(drop).map_err(|error| absent(name, error))
    }
}

fn seen(image: ImageInspect) -> Image {
    Image {
        id: image.id.unwrap_or_default(),
        names: image.repo_tags.unwrap_or_default(),
        bytes: image.size.and_then(|size| u64::try_from(size).ok()).unwrap_or(0),
        user: image.config.and_then(|config| config.user).unwrap_or_default(),
    }
}

/// An error about an image: that it is not there is said in many words.
fn absent(name: &str, error: Error) -> DockerError {
    const NOT_THERE: [&str; 5] =
        ["No such image", "not found", "manifest unknown", "does not exist", "access denied"];
    let error = DockerError::from(error);
    match &error {
        DockerError::Refused(message) if NOT_THERE.iter().any(|words| message.contains(words)) => {
            DockerError::NoSuchImage(name.to_owned())
        }
        _ => error,
    }
}

/// A name with a tag: without one the daemon would fetch all there are.
fn tagged(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    if last.contains([':', '@']) { name.to_owned() } else { format!("{name}:latest") }
}

/// The name in what the daemon says of an image that it has taken in.
fn loaded(line: &str) -> Option<String> {
    let line = line.trim();
    let name =
        line.strip_prefix("Loaded image: ").or_else(|| line.strip_prefix("Loaded image ID: "));
    name.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_get_a_tag() {
        assert_eq!(tagged("python"), "python:latest");
        assert_eq!(tagged("host:5000/a/b"), "host:5000/a/b:latest");
        for whole in ["python:3.12", "host:5000/a:b", "a@sha256:00"] {
            assert_eq!(tagged(whole), whole);
        }
    }

    #[test]
    fn the_daemon_is_understood() {
        assert_eq!(loaded("Loaded image: a:b\n").as_deref(), Some("a:b"));
        assert_eq!(loaded("Loaded image ID: sha256:00\n").as_deref(), Some("sha256:00"));
        assert_eq!(loaded("Loading layer"), None);
        let said = |message: &str| Error::DockerResponseServerError {
            status_code: 500,
            message: message.into(),
        };
        let error = absent("a", said("manifest for a:latest not found: manifest unknown"));
        assert!(matches!(error, DockerError::NoSuchImage(name) if name == "a"));
        let error = absent("a", said("no space left on device"));
        assert!(matches!(error, DockerError::Refused(_)));
    }
}
