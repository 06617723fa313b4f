//! Tables as kubectl prints them.

use std::io::{self, Write};

use super::output::color::{of_cell, paint};

/// Columns as wide as their longest cell, three blanks between, nothing behind the last. The first row is the head, if any.
pub(crate) fn write(out: &mut impl Write, rows: &[Vec<String>]) -> io::Result<()> {
    Widths::default().write(out, rows)
}

/// How wide columns are; they only grow, so that rows that come later stand below those before.
#[derive(Debug, Default)]
pub(crate) struct Widths {
    widths: Vec<usize>,
    /// The heads, where cells are coloured by them.
    painted: Option<Vec<String>>,
}

impl Widths {
    /// Cells below these heads say in colours how things are.
    pub(crate) fn painted(heads: &[String]) -> Self {
        Self { widths: Vec::new(), painted: Some(heads.to_vec()) }
    }

    /// From here on.
    pub(crate) fn paint(&mut self, heads: &[String]) {
        self.painted = Some(heads.to_vec());
    }

    pub(crate) fn write(&mut self, out: &mut impl Write, rows: &[Vec<String>]) -> io::Result<()> {
        let columns = rows.iter().map(Vec::len).max().unwrap_or_default().max(self.widths.len());
        self.widths.resize(columns, 0);
        for row in rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in rows {
            writeln!(out, "{}", self.line(row))?;
        }
        Ok(())
    }

    fn line(&self, row: &[String]) -> String {
        let last = row.iter().rposition(|cell| !cell.is_empty()).map_or(0, |last| last + 1);
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate().take(last) {
            let head = self.painted.as_ref().and_then(|heads| heads.get(at));
            line.push_str(&paint(cell, head.and_then(|head| of_cell(head, cell))));
            if at + 1 < last {
                let width = self.widths.get(at).copied().unwrap_or_default();
                line.push_str(&" ".repeat(width.saturating_sub(cell.chars().count()) + 3));
            }
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: [&str; 2]) -> Vec<String> {
        cells.map(str::to_owned).to_vec()
    }

    #[test]
    fn later_rows_stand_below_those_before() {
        let (mut out, mut widths) = (Vec::new(), Widths::default());
        for cells in [["NAME", "AGE"], ["a-long-name", "5s"], ["web", "6s"], ["last", ""]] {
            widths.write(&mut out, &[row(cells)]).unwrap();
        }
        assert_eq!(String::from_utf8(out).unwrap(), "NAME   AGE\na-long-name   5s\nweb           6s\nlast\n");
    }

    #[test]
    fn colours_take_no_room() {
        let rows = [row(["STATUS", "NAME"]), row(["Running", "web"]), row(["Other", "db"])];
        let mut out = Vec::new();
        Widths::painted(&rows[0]).write(&mut out, &rows).unwrap();
        let expected = "STATUS    NAME\n\u{1b}[32mRunning\u{1b}[0m   web\nOther     db\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
