//! Tables as kubectl prints them.

use std::io::{self, Write};

use super::output::color::{cell_color, paint};
use super::output::terminal::escape;

/// Writes rows as aligned columns: each column is as wide as its longest cell, three spaces separate columns, and
/// trailing spaces are removed. The first row may be a header.
pub fn write(out: &mut impl Write, rows: &[Vec<String>]) -> io::Result<()> {
    Widths::default().write(out, rows)
}

/// Column widths. They only grow, so that rows of later calls stay aligned with earlier ones.
#[derive(Debug, Default)]
pub(crate) struct Widths {
    widths: Vec<usize>,
    /// Header cells; with them, status cells are coloured by the header of their column.
    color_headers: Option<Vec<String>>,
    /// Maximum width of a line in characters; the last column is wrapped to it.
    max_width: Option<usize>,
}

/// Minimum width of the last column, in characters, for it to be wrapped.
const MIN_WRAP_WIDTH: usize = 20;

impl Widths {
    /// Column widths that also colour status cells by the header of their column.
    pub(crate) fn with_colors(headers: &[String]) -> Self {
        Self { color_headers: Some(headers.to_vec()), ..Self::default() }
    }

    /// Wraps the last column so that lines have at most this width in characters.
    pub(crate) fn with_max_width(self, width: Option<usize>) -> Self {
        Self { max_width: width, ..self }
    }

    /// Colours the status cells of all following rows by these headers.
    pub(crate) fn set_color_headers(&mut self, headers: &[String]) {
        self.color_headers = Some(headers.to_vec());
    }

    pub(crate) fn write(&mut self, out: &mut impl Write, rows: &[Vec<String>]) -> io::Result<()> {
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|cell| escape(cell).into_owned()).collect()).collect();
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
        let (mut line, mut offset) = (String::new(), 0);
        for (at, cell) in row.iter().enumerate().take(last) {
            let available = self
                .max_width
                .and_then(|width| width.checked_sub(offset))
                .filter(|available| *available >= MIN_WRAP_WIDTH);
            if let Some(available) = available.filter(|available| at + 1 == last && cell.chars().count() > *available) {
                line.push_str(&wrap(cell, available, offset));
                continue;
            }
            let header = self.color_headers.as_ref().and_then(|headers| headers.get(at));
            line.push_str(&paint(cell, header.and_then(|header| cell_color(header, cell))));
            if at + 1 < last {
                let width = self.widths.get(at).copied().unwrap_or_default();
                line.push_str(&" ".repeat(width.saturating_sub(cell.chars().count()) + 3));
                offset += width + 3;
            }
        }
        line
    }
}

/// Wraps a cell to lines of `width` characters; continuation lines are indented by `indent` spaces.
fn wrap(cell: &str, width: usize, indent: usize) -> String {
    let (mut wrapped, mut used) = (String::new(), 0);
    for word in cell.split(' ') {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > width {
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
            Widths::default().with_max_width(width).write(&mut out, &rows).unwrap();
            String::from_utf8(out).unwrap()
        };
        let wrapped = "OBJECT    MESSAGE\npod/web   one two three four\n          five six seven\n";
        assert_eq!(printed(Some(30)), wrapped);
        let unwrapped = "OBJECT    MESSAGE\npod/web   one two three four five six seven\n";
        assert_eq!([printed(None), printed(Some(80)), printed(Some(25))], [unwrapped, unwrapped, unwrapped]);
    }

    #[test]
    fn colours_do_not_count_as_width() {
        let rows = [row(["STATUS", "NAME"]), row(["Running", "web"]), row(["Other", "db"])];
        let mut out = Vec::new();
        Widths::with_colors(&rows[0]).write(&mut out, &rows).unwrap();
        let expected = "STATUS    NAME\n\u{1b}[32mRunning\u{1b}[0m   web\nOther     db\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
