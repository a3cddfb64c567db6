//! The binary under test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, bail, ensure};
use mesh_node::clock::steady;

/// The binary under test: `MESH_BIN`, or else the one of this checkout, built now if need be.
///
/// A test of the whole workspace has built it just before. Which features its libraries have depends
/// on what else was built along with it, so to build it by itself would compile most of them again.
pub fn binary() -> anyhow::Result<&'static Path> {
    static BINARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BINARY.get_or_init(|| match std::env::var_os("MESH_BIN") {
        Some(path) => Ok(path.into()),
        None => build().map_err(|error| format!("{error:#}")),
    });
    match built {
        Ok(path) => Ok(path),
        Err(error) => bail!("{error}"),
    }
}

fn build() -> anyhow::Result<PathBuf> {
    // A test is TARGET/PROFILE/deps/NAME-HASH.
    let test = std::env::current_exe()?;
    let profile = test.ancestors().nth(2).context("this test is in no target directory")?;
    let target = profile.parent().context("this test is in no target directory")?;
    let named = match profile.file_name().and_then(|name| name.to_str()) {
        None | Some("debug") => "dev",
        Some(other) => other,
    };
    let mesh = profile.join("mesh");
    if is_fresh(&mesh) {
        return Ok(mesh);
    }
    let begun = steady();
    let output = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(["build", "--quiet", "--locked", "--package", "mesh-cli", "--profile", named])
        .arg("--target-dir")
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .context("cargo could not be started")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "mesh could not be built:\n{said}");
    println!("mesh was built in {:.1} s", begun.elapsed().as_secs_f64());
    Ok(mesh)
}

/// Whether a binary is there and younger than all that it was made of, which cargo lists beside it.
fn is_fresh(binary: &Path) -> bool {
    let changed = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
    let Some(built) = changed(binary) else { return false };
    let list = std::fs::read_to_string(binary.with_extension("d")).unwrap_or_default();
    let Some((_, sources)) = list.split_once(": ") else { return false };
    // A space in a path is written with a backslash before it.
    let sources = sources.trim().replace("\\ ", "\0");
    let mut sources = sources.split(' ').map(|source| source.replace('\0', " "));
    sources.all(|source| changed(Path::new(&source)).is_some_and(|changed| changed <= built))
}
