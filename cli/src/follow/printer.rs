//! What tasks print, where they printed it: standard output to standard output, standard error to standard error.
//!
//! Owns how the lines of several tasks stand side by side:
//!
//! ```text
//! task 0 | epoch 1, loss 0.42
//! task 3 | epoch 1, loss 0.40
//! ```
//!
//! A single task's output is passed on as it came, down to a last line without an end. It is the person's own and may
//! hold colours and progress bars, so it is not cleaned.

use std::io::{self, Write};

use serde_json::Value;

use crate::answers::LogLine;
use crate::report::Report;
use crate::view::{Paint, Tint, clean};

/// Prints the lines of a job.
#[derive(Debug)]
pub(crate) struct Printer<O, E> {
    out: Sink<O>,
    err: Sink<E>,
    /// Whether both are the same terminal: what is unfinished in one of them stands in the way of the other.
    one_screen: bool,
    /// How many digits the number of a task has; `None` while there is one task only.
    label: Option<usize>,
    times: bool,
}

#[derive(Debug)]
struct Sink<W> {
    to: W,
    paint: Paint,
    /// The attempt whose line stands there without an end.
    open: Option<Attempt>,
    /// Whoever read it has gone.
    closed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Attempt {
    task: u64,
    fence: u64,
}

impl<W: Write> Sink<W> {
    fn new(to: W) -> Self {
        Self { to, paint: Paint(false), open: None, closed: false }
    }

    /// Ends a line that is unfinished.
    fn end_line(&mut self) -> io::Result<()> {
        match self.open.take() {
            Some(_) => self.write("\n"),
            None => Ok(()),
        }
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        if self.closed {
            return Ok(());
        }
        match self.to.write_all(text.as_bytes()).and_then(|()| self.to.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            written => written,
        }
    }

    fn print(&mut self, from: Attempt, label: &str, text: &str, whole: bool) -> io::Result<()> {
        let mut line = String::with_capacity(label.len() + text.len() + 1);
        if self.open != Some(from) {
            self.end_line()?;
            line.push_str(label);
        }
        line.push_str(text);
        if whole {
            line.push('\n');
        }
        self.open = (!whole).then_some(from);
        self.write(&line)
    }
}

impl<O: Write, E: Write> Printer<O, E> {
    /// For one task, without colour.
    pub(crate) fn new(out: O, err: E) -> Self {
        let (out, err) = (Sink::new(out), Sink::new(err));
        Self { out, err, one_screen: false, label: None, times: false }
    }

    /// Whether both are the same terminal.
    pub(crate) fn on_one_screen(self, one_screen: bool) -> Self {
        Self { one_screen, ..self }
    }

    /// In colour.
    pub(crate) fn painted(mut self, out: Paint, err: Paint) -> Self {
        (self.out.paint, self.err.paint) = (out, err);
        self
    }

    /// Each line begins with its time.
    pub(crate) fn with_times(self, times: bool) -> Self {
        Self { times, ..self }
    }

    /// If there are several tasks, each line says whose it is.
    pub(crate) fn of_tasks(&mut self, tasks: usize) {
        self.label = (tasks > 1).then(|| (tasks - 1).to_string().len());
    }

    /// Whether whoever read standard output has gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.out.closed
    }

    /// Prints a line, or a part of one.
    pub(crate) fn line(&mut self, line: &LogLine) -> Result<(), Report> {
        if line.kind == "error" {
            self.note(&self.err.paint.dye(&clean(&line.text), Tint::Odd));
            return Ok(());
        }
        let from = Attempt { task: line.task, fence: line.fence };
        let whole = line.whole.unwrap_or(true);
        let written = match line.stream.as_str() {
            "mesh" => {
                let label = self.label_of(line, self.err.paint);
                let text = self.err.paint.dye(&clean(&line.text), Tint::Faint);
                self.note(&format!("{label}{text}"));
                Ok(())
            }
            "err" => {
                let label = self.label_of(line, self.err.paint);
                self.make_way(from).and_then(|()| self.err.print(from, &label, &line.text, whole))
            }
            _ => {
                let label = self.label_of(line, self.out.paint);
                self.make_way(from).and_then(|()| self.out.print(from, &label, &line.text, whole))
            }
        };
        written.map_err(unwritten)
    }

    /// One object as a line of standard output.
    pub(crate) fn json(&mut self, value: &Value) -> Result<(), Report> {
        self.out.write(&format!("{value}\n")).map_err(unwritten)
    }

    /// A line of mesh's own, on standard error. Nobody is told if it cannot be written.
    pub(crate) fn note(&mut self, text: &str) {
        self.end_lines();
        let _ = self.err.write(&format!("{text}\n"));
    }

    /// What comes next on standard error begins a line of its own.
    pub(crate) fn end_lines(&mut self) {
        let _ = self.err.end_line();
        // Of what goes elsewhere, not even the end of a line is made up.
        if self.one_screen {
            let _ = self.out.end_line();
        }
    }

    /// On one screen, a line that begins with a label needs a line of its own.
    fn make_way(&mut self, from: Attempt) -> io::Result<()> {
        let is_other = |open: Option<Attempt>| open.is_some_and(|open| open != from);
        if !self.one_screen || !(is_other(self.out.open) || is_other(self.err.open)) {
            return Ok(());
        }
        self.out.end_line()?;
        self.err.end_line()
    }

    fn label_of(&self, line: &LogLine, paint: Paint) -> String {
        let mut label = String::new();
        if self.times {
            label += &format!("{} ", paint.dye(&clean(&line.time), Tint::Faint));
        }
        if let Some(digits) = self.label {
            label += &paint.mark(&format!("task {:>digits$} | ", line.task), line.task);
        }
        label
    }
}

fn unwritten(error: io::Error) -> Report {
    let error = anyhow::Error::from(error).context("what the job printed could not be written");
    Report::failed(&error, "send the output to a file or a terminal")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(task: u64, stream: &str, text: &str, whole: bool) -> LogLine {
        LogLine {
            kind: "line".into(),
            task,
            fence: 7,
            time: "2026-11-16T12:00:00.25Z".into(),
            stream: stream.into(),
            text: text.into(),
            whole: Some(whole),
        }
    }

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    fn printed(printer: &Printer<Vec<u8>, Vec<u8>>) -> (&str, &str) {
        (text(&printer.out.to), text(&printer.err.to))
    }

    #[test]
    fn what_one_task_prints_is_passed_on_to_the_byte() {
        let mut printer = Printer::new(Vec::new(), Vec::new());
        printer.of_tasks(1);
        for (stream, text, whole) in [
            ("out", "one", true),
            ("out", "10 %", false),
            ("err", "hm", true),
            ("out", "\r20 %", false),
            ("out", "", true),
            ("out", "\x1b[1mno end", false),
        ] {
            printer.line(&line(0, stream, text, whole)).unwrap();
        }
        printer.note("done");
        assert_eq!(printed(&printer), ("one\n10 %\r20 %\n\x1b[1mno end", "hm\ndone\n"));
    }

    #[test]
    fn of_several_tasks_each_line_says_whose_it_is() {
        let mut printer = Printer::new(Vec::new(), Vec::new());
        printer.of_tasks(11);
        for (task, text, whole) in
            [(0, "a", true), (10, "b", false), (10, "c", true), (1, "d", false), (2, "e", true)]
        {
            printer.line(&line(task, "out", text, whole)).unwrap();
        }
        let want = "task  0 | a\ntask 10 | bc\ntask  1 | d\ntask  2 | e\n";
        assert_eq!(printed(&printer), (want, ""));
        // Its line goes on, after another was in between.
        printer.line(&line(1, "out", "f", true)).unwrap();
        assert!(printed(&printer).0.ends_with("task  2 | e\ntask  1 | f\n"));
    }

    #[test]
    fn on_one_screen_nothing_is_glued_to_an_unfinished_line() {
        let mut printer = Printer::new(Vec::new(), Vec::new()).on_one_screen(true);
        printer.of_tasks(2);
        printer.line(&line(0, "out", "half", false)).unwrap();
        printer.line(&line(1, "err", "other", true)).unwrap();
        assert_eq!(printed(&printer), ("task 0 | half\n", "task 1 | other\n"));
        printer.line(&line(0, "out", "half", false)).unwrap();
        printer.note("placed on beta");
        assert_eq!(printed(&printer).0, "task 0 | half\ntask 0 | half\n");
    }

    #[test]
    fn another_attempt_begins_a_line_of_its_own() {
        let mut printer = Printer::new(Vec::new(), Vec::new());
        printer.line(&line(0, "out", "cut off", false)).unwrap();
        let next = LogLine { fence: 9, ..line(0, "out", "again", true) };
        printer.line(&next).unwrap();
        assert_eq!(printed(&printer).0, "cut off\nagain\n");
    }

    #[test]
    fn times_and_colours_stand_before_the_line() {
        let mut printer = Printer::new(Vec::new(), Vec::new()).with_times(true);
        printer.line(&line(0, "out", "a", false)).unwrap();
        printer.line(&line(0, "out", "b", true)).unwrap();
        assert_eq!(printed(&printer).0, "2026-11-16T12:00:00.25Z ab\n");
        let mut printer = Printer::new(Vec::new(), Vec::new()).painted(Paint(true), Paint(true));
        printer.of_tasks(2);
        printer.line(&line(1, "out", "a", true)).unwrap();
        assert_eq!(printed(&printer).0, "\x1b[35mtask 1 | \x1b[0ma\n");
    }

    #[test]
    fn what_mesh_says_goes_beside_and_cannot_move_the_cursor() {
        let mut printer = Printer::new(Vec::new(), Vec::new());
        printer.line(&line(0, "mesh", "killed: memory\x1b[2J", true)).unwrap();
        let gone = LogLine { kind: "error".into(), ..line(0, "", "beta does not answer", true) };
        printer.line(&gone).unwrap();
        assert_eq!(printed(&printer), ("", "killed: memory[2J\nbeta does not answer\n"));
    }

    /// A pipe that nobody reads.
    struct Gone;

    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn whoever_closes_the_pipe_has_read_enough() {
        let mut printer = Printer::new(Gone, Vec::new());
        assert!(!printer.is_closed());
        printer.line(&line(0, "out", "a", true)).unwrap();
        printer.line(&line(0, "err", "b", true)).unwrap();
        assert!(printer.is_closed());
    }
}
