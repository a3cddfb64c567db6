//! A live screen: the terminal's second page, given back whatever happens.

use std::io::{self, Write};

use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::{cursor, event, execute, queue, terminal};
use tokio::sync::mpsc;

/// Keys that wait to be looked at. More are dropped: whoever types that fast repeats himself.
const KEYS_WAITING: usize = 8;

/// What a key means on a live screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    /// `q` or Escape.
    Quit,
    /// Ctrl-C.
    Interrupt,
    /// The screen has another size now.
    Resized,
}

/// The terminal's second page, in raw mode. Dropping it gives the first one back.
#[derive(Debug)]
pub(crate) struct Screen {
    keys: mpsc::Receiver<Key>,
}

impl Screen {
    /// Takes the terminal over.
    pub(crate) fn open() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        let (send, keys) = mpsc::channel(KEYS_WAITING);
        // From here on, dropping it puts everything back.
        let screen = Self { keys };
        // A line that is too long is cut at the edge: one that wraps would push the others down.
        execute!(
            io::stdout(),
            terminal::EnterAlternateScreen,
            terminal::DisableLineWrap,
            cursor::Hide
        )?;
        // Reading keys blocks, so it has a thread of its own, which ends with the process.
        std::thread::spawn(move || {
            while let Ok(event) = event::read() {
                if let Some(key) = meaning(&event) {
                    let full = send.try_send(key);
                    if matches!(full, Err(mpsc::error::TrySendError::Closed(_))) {
                        return;
                    }
                }
            }
        });
        Ok(screen)
    }

    /// The next key that means something.
    pub(crate) async fn key(&mut self) -> Key {
        // Without a reader there is nobody to type.
        self.keys.recv().await.unwrap_or(Key::Interrupt)
    }

    /// Draws text from the top left, and clears what it does not cover.
    pub(crate) fn draw(&mut self, text: &str) -> io::Result<()> {
        let (_, rows) = terminal::size()?;
        let mut out = io::stdout().lock();
        queue!(out, terminal::BeginSynchronizedUpdate, cursor::MoveTo(0, 0))?;
        for line in text.lines().take(usize::from(rows)) {
            queue!(out, terminal::Clear(terminal::ClearType::CurrentLine))?;
            write!(out, "{line}")?;
            queue!(out, cursor::MoveToNextLine(1))?;
        }
        queue!(out, terminal::Clear(terminal::ClearType::FromCursorDown))?;
        queue!(out, terminal::EndSynchronizedUpdate)?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Each undone on its own, and nothing is to be done where one fails.
        let _ = execute!(
            io::stdout(),
            cursor::Show,
            terminal::EnableLineWrap,
            terminal::LeaveAlternateScreen
        );
        let _ = terminal::disable_raw_mode();
    }
}

fn meaning(event: &Event) -> Option<Key> {
    match event {
        Event::Resize(..) => Some(Key::Resized),
        Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                Some(Key::Interrupt)
            }
            KeyCode::Char('q') | KeyCode::Esc => Some(Key::Quit),
            _ => None,
        },
        _ => None,
    }
}
