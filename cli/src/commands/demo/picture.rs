//! The demo as a live picture.

use std::io;
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Paragraph, Row, Table};
use tokio::time::sleep;

use super::Stage;
use super::scene::{Mode, Scene, Seen};
use crate::report::{Code, Report};
use crate::screen::{Key, Screen};

const FRAME: Duration = Duration::from_millis(66);

/// Draws until somebody stops it, which is the report that it returns. Without a picture it waits forever.
pub(super) async fn show(stage: &Stage, mode: Mode) -> Report {
    if mode != Mode::Picture {
        return std::future::pending().await;
    }
    match draw(stage).await {
        Ok(()) => {
            let cause = "it was asked to stop before the story was over";
            Report::new(Code::Interrupted, "interrupted", cause, "mesh demo")
        }
        Err(error) => Report::failed(&error.into(), "mesh demo | cat"),
    }
}

async fn draw(stage: &Stage) -> io::Result<()> {
    let mut screen = Screen::open()?;
    let mut terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
    let coloured = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    loop {
        terminal.draw(|frame| render(frame, &stage.scene.borrow(), coloured))?;
        tokio::select! {
            key = screen.key() => if key != Key::Resized { return Ok(()) },
            () = sleep(FRAME) => {}
        }
    }
}

fn render(frame: &mut ratatui::Frame<'_>, scene: &Scene, coloured: bool) {
    let ink = |color: Color| if coloured { Style::new().fg(color) } else { Style::new() };
    let faint = Style::new().add_modifier(Modifier::DIM);
    let strong = Style::new().add_modifier(Modifier::BOLD);
    let [head, nodes, events, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(6),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());

    let clock = format!("{:.1} s", scene.elapsed_ms() as f64 / 1000.0);
    let title = vec![Span::styled("mesh demo", strong), " · three nodes on this machine".into()];
    frame.render_widget(Paragraph::new(Line::from(title)), head);
    frame.render_widget(Paragraph::new(clock).right_aligned(), head);

    let boxed = |title: &'static str| {
        Block::bordered().border_type(BorderType::Rounded).border_style(faint).title(title)
    };
    let rows = scene.nodes.iter().map(|node| {
        let style = match node.part() {
            "leader" => ink(Color::Green).add_modifier(Modifier::BOLD),
            "killed" => ink(Color::Red),
            "not up" => faint,
            _ => Style::new(),
        };
        Row::new(cells(node)).style(style)
    });
    let widths = [
        Constraint::Length(1),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Length(6),
        Constraint::Length(7),
        Constraint::Min(0),
    ];
    let table = Table::new(rows, widths).column_spacing(2).block(boxed(" nodes "));
    frame.render_widget(
        table.header(Row::new(["", "NAME", "ROLE", "TERM", "INDEX", "FOLLOWS"]).style(faint)),
        nodes,
    );

    let room = usize::from(events.height.saturating_sub(2));
    let first = scene.events.len().saturating_sub(room);
    let lines: Vec<Line<'_>> = scene.events[first..]
        .iter()
        .map(|event| {
            let style = match event.kind {
                "killed" => ink(Color::Red).add_modifier(Modifier::BOLD),
                "failover" | "agreed" | "returned" => ink(Color::Green),
                _ => Style::new(),
            };
            let at = format!("{:>6.2} s  ", event.at_ms as f64 / 1000.0);
            Line::from(vec![Span::styled(at, faint), Span::styled(event.text.as_str(), style)])
        })
        .collect();
    frame.render_widget(Paragraph::new(lines).block(boxed(" what happened ")), events);

    let failover = match scene.failover_ms {
        Some(ms) => Span::styled(
            format!("failover {ms} ms"),
            ink(Color::Green).add_modifier(Modifier::BOLD),
        ),
        None => Span::styled("failover not measured yet", faint),
    };
    let state = if scene.is_over { "done" } else { "q stops" };
    frame.render_widget(Paragraph::new(Line::from(failover)), foot);
    frame.render_widget(Paragraph::new(Span::styled(state, faint)).right_aligned(), foot);
}

fn cells(node: &Seen) -> [String; 6] {
    let sign = match node.part() {
        "leader" => "★",
        "killed" => "✗",
        "not up" => "·",
        _ => "●",
    };
    let (term, index, follows) = node.status.as_ref().map_or_else(Default::default, |status| {
        let follows =
            if status.is_leader { String::new() } else { status.leader.shown().to_owned() };
        (status.term.to_string(), status.index.to_string(), follows)
    });
    [sign.into(), node.name.into(), node.part().into(), term, index, follows]
}

#[cfg(test)]
mod tests {
    use ratatui::backend::TestBackend;

    use super::super::scene::tests::{scene, status};
    use super::*;

    fn drawn(scene: &Scene, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| render(frame, scene, true)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_picture_shows_who_leads_who_is_dead_and_the_failover() {
        let mut scene = scene([None, Some(status("b", "b", 3, 41)), Some(status("c", "b", 3, 40))]);
        scene.killed(0);
        scene.says("killed", Some(0), "a is killed with SIGKILL".into()).unwrap();
        scene.failover(312);
        let picture = drawn(&scene, 80, 20);
        println!("{picture}");
        for part in ["★  b", "✗  a", "killed with SIGKILL", "failover 312 ms", "b leads in term 3"]
        {
            assert!(picture.contains(part), "{part} is not in\n{picture}");
        }
    }

    #[test]
    fn a_tiny_terminal_is_no_reason_to_fall_over() {
        let scene = scene([None, None, None]);
        for (width, height) in [(1, 1), (5, 3), (20, 8), (200, 60)] {
            drawn(&scene, width, height);
        }
    }
}
