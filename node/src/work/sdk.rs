//! The Python package `mesh`, which every task finds on its `PYTHONPATH`.
//!
//! It is part of this program, and laid out once for each version of it: `DIR/sdk/HASH/mesh/…`. An attempt that began with an earlier
//! version keeps that one.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use mesh_consensus::id::Hash;

use super::attempt::remove;

/// The files of the package.
const FILES: &[(&str, &str)] = &[
    ("__init__.py", include_str!("../../../python/mesh/__init__.py")),
    ("_client.py", include_str!("../../../python/mesh/_client.py")),
    ("_tensors.py", include_str!("../../../python/mesh/_tensors.py")),
];

/// Lays the package out, unless it is there: the directory to be put on `PYTHONPATH`. Touches the disk.
pub(super) fn lay(dir: &Path) -> io::Result<PathBuf> {
    let mut all = Vec::new();
    for (name, text) in FILES {
        all.extend_from_slice(&Hash::of(name.as_bytes()).0);
        all.extend_from_slice(&Hash::of(text.as_bytes()).0);
    }
    let name = Hash::of(&all).to_string();
    let above = dir.join("sdk");
    let place = above.join(&name[..16]);
    if place.exists() {
        return Ok(place);
    }
    DirBuilder::new().recursive(true).mode(0o700).create(&above)?;
    // Whole, or not there: two attempts may begin at once.
    let beside = above.join(format!("new-{}", Hash(crate::random()).short()));
    let laid = write(&beside).and_then(|()| fs::rename(&beside, &place));
    remove(&beside);
    match laid {
        Err(_) if place.exists() => Ok(place),
        laid => laid.map(|()| place),
    }
}

fn write(to: &Path) -> io::Result<()> {
    let package = to.join("mesh");
    for dir in [to, &package] {
        fs::create_dir(dir)?;
        // For tasks of any user to read.
        fs::set_permissions(dir, Permissions::from_mode(0o755))?;
    }
    for (name, text) in FILES {
        let file = package.join(name);
        fs::write(&file, text)?;
        fs::set_permissions(&file, Permissions::from_mode(0o644))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_is_laid_out_once() {
        let temp = tempfile::tempdir().unwrap();
        let place = lay(temp.path()).unwrap();
        assert_eq!(lay(temp.path()).unwrap(), place);
        for (name, text) in FILES {
            let file = place.join("mesh").join(name);
            assert_eq!(fs::read_to_string(&file).unwrap(), *text);
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
        }
        assert_eq!(fs::read_dir(temp.path().join("sdk")).unwrap().count(), 1);
    }
}
