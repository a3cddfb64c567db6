//! A wall clock that jumps while a process runs.
//!
//! `faketime` sets the clock once, at the start, and not every machine has it. A small library of our
//! own, built with the C compiler that the project needs anyway, reads the error of the clock from a
//! file whenever the time is asked for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

const SOURCE: &str = include_str!("clock.c");

/// The wall clock of one host.
pub struct WallClock {
    library: PathBuf,
    file: PathBuf,
}

impl WallClock {
    /// One that is right at first. Keeps its files in `dir`.
    pub fn new(dir: &Path) -> anyhow::Result<Self> {
        let clock = Self { library: dir.join("clock.so"), file: dir.join("clock") };
        let source = dir.join("clock.c");
        fs::write(&source, SOURCE)?;
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&clock.library, &source])
            .output()
            .context("cc could not be started")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "clock.c: {said}");
        clock.set(0)?;
        Ok(clock)
    }

    /// From now on it is wrong by so many seconds.
    pub fn set(&self, seconds: i64) -> anyhow::Result<()> {
        use std::os::unix::fs::FileExt;
        // In place: whoever has mapped the file must see the change.
        let file =
            fs::OpenOptions::new().write(true).create(true).truncate(false).open(&self.file)?;
        file.write_all_at(&seconds.to_ne_bytes(), 0)?;
        Ok(())
    }

    /// A process started so has this clock, and so have those that it starts.
    pub fn give(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("MESH_CHAOS_CLOCK", &self.file);
    }
}
