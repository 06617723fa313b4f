//! Tables as kubectl prints them.

use std::io::{self, Write};

use super::output::color::{of_cell, paint};
use super::output::terminal::shown;

/// Writes rows as aligned columns: each column is as wide as its longest cell, three spaces separate columns, and
/// trailing blanks are cut. The first row may be a header.
pub fn write(out: &mut impl Write, rows: &[Vec<String>]) -> io::Result<()> {
    Widths::default().write(out, rows)
}

/// Column widths. They only grow, so that rows of later calls stay aligned with earlier ones.
#[derive(Debug, Default)]
pub(crate) struct Widths {
    widths: Vec<usize>,
    /// Header cells; with them, status cells are coloured by the header of their column.
    painted: Option<Vec<String>>,
    /// Terminal width in characters; the last column is wrapped to it.
    fits: Option<usize>,
}

/// Minimum width of the last column, in characters, for it to be wrapped.
const MIN_WRAP_WIDTH: usize = 20;

impl Widths {
    /// Colours status cells below these headers.
    pub(crate) fn painted(heads: &[String]) -> Self {
        Self { painted: Some(heads.to_vec()), ..Self::default() }
    }

    /// Wraps the last column to this width.
    pub(crate) fn fitting(self, width: Option<usize>) -> Self {
        Self { fits: width, ..self }
    }

    /// Colours the cells of all following rows by these headers.
    pub(crate) fn paint(&mut self, heads: &[String]) {
        self.painted = Some(heads.to_vec());
    }

    pub(crate) fn write(&mut self, out: &mut impl Write, rows: &[Vec<String>]) -> io::Result<()> {
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|cell| shown(cell).into_owned()).collect()).collect();
        let columns = rows.iter().map(Vec::len).max().unwrap_or_default().max(self.widths.len());
        self.widths.resize(columns, 0);
        for row in &rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in &rows {
            writeln!(out, "{}", self.line(row))?;
        }
        Ok(())
    }

    fn line(&self, row: &[String]) -> String {
        let last = row.iter().rposition(|cell| !cell.is_empty()).map_or(0, |last| last + 1);
        let (mut line, mut begins) = (String::new(), 0);
        for (at, cell) in row.iter().enumerate().take(last) {
            let room = self.fits.and_then(|width| width.checked_sub(begins)).filter(|room| *room >= MIN_WRAP_WIDTH);
            if let Some(room) = room.filter(|room| at + 1 == last && cell.chars().count() > *room) {
                line.push_str(&wrapped(cell, room, begins));
                continue;
            }
            let head = self.painted.as_ref().and_then(|heads| heads.get(at));
            line.push_str(&paint(cell, head.and_then(|head| of_cell(head, cell))));
            if at + 1 < last {
                let width = self.widths.get(at).copied().unwrap_or_default();
                line.push_str(&" ".repeat(width.saturating_sub(cell.chars().count()) + 3));
                begins += width + 3;
            }
        }
        line
    }
}

/// Wraps a cell to lines of `room` characters; continuation lines are indented by `indent` spaces.
fn wrapped(cell: &str, room: usize, indent: usize) -> String {
    let (mut wrapped, mut used) = (String::new(), 0);
    for word in cell.split(' ') {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > room {
            wrapped.push_str(&format!("\n{}", " ".repeat(indent)));
            used = 0;
        } else if used > 0 {
            wrapped.push(' ');
            used += 1;
        }
        wrapped.push_str(word);
        used += length;
    }
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: [&str; 2]) -> Vec<String> {
        cells.map(str::to_owned).to_vec()
    }

    #[test]
    fn later_rows_keep_the_column_widths() {
        let (mut out, mut widths) = (Vec::new(), Widths::default());
        for cells in [["NAME", "AGE"], ["a-long-name", "5s"], ["web", "6s"], ["last", ""]] {
            widths.write(&mut out, &[row(cells)]).unwrap();
        }
        assert_eq!(String::from_utf8(out).unwrap(), "NAME   AGE\na-long-name   5s\nweb           6s\nlast\n");
    }

    #[test]
    fn long_last_columns_are_wrapped() {
        let rows = [row(["OBJECT", "MESSAGE"]), row(["pod/web", "one two three four five six seven"])];
        let printed = |width: Option<usize>| {
            let mut out = Vec::new();
            Widths::default().fitting(width).write(&mut out, &rows).unwrap();
            String::from_utf8(out).unwrap()
        };
        let wrapped = "OBJECT    MESSAGE\npod/web   one two three four\n          five six seven\n";
        assert_eq!(printed(Some(30)), wrapped);
        let whole = "OBJECT    MESSAGE\npod/web   one two three four five six seven\n";
        assert_eq!([printed(None), printed(Some(80)), printed(Some(25))], [whole, whole, whole]);
    }

    #[test]
    fn colours_do_not_count_as_width() {
        let rows = [row(["STATUS", "NAME"]), row(["Running", "web"]), row(["Other", "db"])];
        let mut out = Vec::new();
        Widths::painted(&rows[0]).write(&mut out, &rows).unwrap();
        let expected = "STATUS    NAME\n\u{1b}[32mRunning\u{1b}[0m   web\nOther     db\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
