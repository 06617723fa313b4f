//! Tables as kubectl prints them.

use std::io::{self, Write};

/// Columns as wide as their longest cell, three blanks between, nothing behind the last. The first row is the head, if any.
pub(crate) fn write(out: &mut impl Write, rows: &[Vec<String>]) -> io::Result<()> {
    Widths::default().write(out, rows)
}

/// How wide columns are; they only grow, so that rows that come later stand below those before.
#[derive(Debug, Default)]
pub(crate) struct Widths(Vec<usize>);

impl Widths {
    pub(crate) fn write(&mut self, out: &mut impl Write, rows: &[Vec<String>]) -> io::Result<()> {
        let columns = rows.iter().map(Vec::len).max().unwrap_or_default().max(self.0.len());
        self.0.resize(columns, 0);
        for row in rows {
            for (width, cell) in self.0.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in rows {
            let cells: Vec<String> = row.iter().zip(&self.0).map(|(cell, width)| format!("{cell:<width$}")).collect();
            writeln!(out, "{}", cells.join("   ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_rows_stand_below_those_before() {
        let (mut out, mut widths) = (Vec::new(), Widths::default());
        for row in [["NAME", "AGE"], ["a-long-name", "5s"], ["web", "6s"]] {
            widths.write(&mut out, &[row.map(str::to_owned).to_vec()]).unwrap();
        }
        assert_eq!(String::from_utf8(out).unwrap(), "NAME   AGE\na-long-name   5s\nweb           6s\n");
    }
}
