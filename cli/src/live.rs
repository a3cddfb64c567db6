//! What is looked at again and again: one question, and its answer once a second.

use std::io::IsTerminal;
use std::time::Duration;

use tokio::time::{Instant, interval, sleep};

use crate::client::{Answer, Api};
use crate::commands::status::OLD_MS;
use crate::commands::{Ending, interrupted};
use crate::context::{Context, print, print_json};
use crate::report::{Code, Outcome, Report};
use crate::screen::{Key, Screen};
use crate::view::{Paint, Table, Tint, span, width};

const EVERY: Duration = Duration::from_secs(1);

/// An answer as people see it.
#[derive(Debug)]
pub(crate) struct Drawn {
    /// In a line.
    pub(crate) summary: String,
    /// Row by row.
    pub(crate) table: Table,
}

impl Drawn {
    /// The table, and on a terminal the summary beneath.
    pub(crate) fn once(&self) -> String {
        let paint = Paint::stdout();
        let mut text = self.table.render(width(), paint);
        if std::io::stdout().is_terminal() {
            text += &format!("\n{}\n", paint.dye(&self.summary, Tint::Faint));
        }
        text
    }
}

/// Goes on showing the answer to a question: on a live screen, or else one after another. `command` asks it once.
pub(crate) async fn watch(
    api: &Api,
    context: &Context,
    path: &str,
    command: &str,
    draw: impl Fn(&Answer) -> Result<Drawn, Report>,
) -> Outcome {
    // A node that is not there at all is an error; one that goes away later is shown as such.
    let mut last = api.get(path).await?;
    if context.json || !std::io::stdout().is_terminal() {
        return lines(api, context, path, last, draw).await;
    }
    let failed = |error: std::io::Error| Report::failed(&error.into(), command);
    let mut heard = Instant::now();
    let mut trouble: Option<Report> = None;
    let mut screen = Screen::open().map_err(failed)?;
    let mut ticks = interval(EVERY);
    loop {
        let picture = picture(&draw(&last)?, last.age_ms(), heard, trouble.as_ref());
        screen.draw(&picture).map_err(failed)?;
        tokio::select! {
            key = screen.key() => match key {
                Key::Quit => return Ok(std::process::ExitCode::SUCCESS),
                Key::Interrupt => return interrupted(Ending::Followed),
                Key::Resized => continue,
            },
            _ = ticks.tick() => {}
        }
        match api.get(path).await {
            Ok(answer) => (last, heard, trouble) = (answer, Instant::now(), None),
            Err(report) => trouble = Some(report),
        }
    }
}

async fn lines(
    api: &Api,
    context: &Context,
    path: &str,
    mut last: Answer,
    draw: impl Fn(&Answer) -> Result<Drawn, Report>,
) -> Outcome {
    loop {
        if context.json {
            print_json(last.json())?;
        } else {
            let table = draw(&last)?.table.render(width(), Paint::stdout());
            print(&format!("{table}\n"))?;
        }
        loop {
            sleep(EVERY).await;
            match api.get(path).await {
                Ok(answer) => break last = answer,
                // It may be starting again; the next line comes when it has.
                Err(report)
                    if matches!(report.code, Code::NoNode | Code::Unavailable | Code::Timeout) => {}
                Err(report) => return Err(report),
            }
        }
    }
}

fn picture(drawn: &Drawn, age_ms: Option<u64>, heard: Instant, trouble: Option<&Report>) -> String {
    let paint = Paint::stdout();
    let silence = u64::try_from(heard.elapsed().as_millis()).unwrap_or(u64::MAX);
    let age = age_ms.map(|age| silence.saturating_add(age));
    let state = match (trouble, age) {
        (Some(report), age) => {
            let age = age.unwrap_or(silence);
            paint.dye(&format!("{} ({} ago)", report.message, span(age)), Tint::Bad)
        }
        (None, None) => paint.dye("has heard no leader since it started", Tint::Odd),
        (None, Some(age)) if age >= OLD_MS => {
            paint.dye(&format!("no leader heard for {}", span(age)), Tint::Odd)
        }
        (None, Some(_)) => paint.dye("live, q leaves", Tint::Faint),
    };
    let head = format!("{}\n{state}\n\n", paint.dye(&drawn.summary, Tint::Strong));
    head + &drawn.table.render(width(), paint)
}
