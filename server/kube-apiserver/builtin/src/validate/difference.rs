//! Differences in an immutable field, which are appended to the error: a unified diff of kube-apiserver's internal
//! structs with three lines of context.
//!
//! kube-apiserver uses go-difflib, a port of Python's `difflib` (Ratcliff and Obershelp): the longest run of equal
//! lines, then recursively before and after it. Other algorithms would group changes differently.

use std::collections::HashMap;

use crowsnest_schema::internal_structs::format_internal_struct_lines;
use serde_json::Value;

const CONTEXT_LINES: usize = 3;
/// Number of lines from which very frequent lines (`popular` in difflib) do not start a match.
const MIN_POPULAR_LINES: usize = 200;

/// Diff of two values; `name` is the Go struct, such as `core.PodSpec`.
pub(super) fn format_difference(name: &str, old: &Value, new: &Value) -> String {
    unified_diff(&format_internal_struct_lines(name, old), &format_internal_struct_lines(name, new))
}

/// A run of equal lines: start in both texts, and length.
type Block = (usize, usize, usize);

/// Finds runs of equal lines in two texts, like `SequenceMatcher` of difflib.
struct Matcher<'a> {
    old: Vec<&'a str>,
    /// Positions of each line in the new text.
    positions: HashMap<&'a str, Vec<usize>>,
    new: Vec<&'a str>,
}

impl<'a> Matcher<'a> {
    fn new(old: &'a str, new: &'a str) -> Self {
        let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
        let mut positions: HashMap<&str, Vec<usize>> = HashMap::new();
        for (index, line) in new.iter().enumerate() {
            positions.entry(line).or_default().push(index);
        }
        if new.len() >= MIN_POPULAR_LINES {
            let max_frequency = new.len() / 100 + 1;
            positions.retain(|_, positions| positions.len() <= max_frequency);
        }
        Self { old, positions, new }
    }

    /// The first of the longest runs within both ranges.
    fn find_longest_match(&self, old: std::ops::Range<usize>, new: std::ops::Range<usize>) -> Block {
        let mut best: Block = (old.start, new.start, 0);
        let mut lengths: HashMap<usize, usize> = HashMap::new();
        for i in old.clone() {
            let mut lengths_here = HashMap::new();
            for j in self.positions.get(self.old[i]).into_iter().flatten().copied().filter(|j| new.contains(j)) {
                let length = j.checked_sub(1).and_then(|before| lengths.get(&before)).copied().unwrap_or(0) + 1;
                lengths_here.insert(j, length);
                if length > best.2 {
                    best = (i + 1 - length, j + 1 - length, length);
                }
            }
            lengths = lengths_here;
        }
        // Very frequent lines can extend a run.
        let are_equal = |i: usize, j: usize| self.old[i] == self.new[j];
        while best.0 > old.start && best.1 > new.start && are_equal(best.0 - 1, best.1 - 1) {
            best = (best.0 - 1, best.1 - 1, best.2 + 1);
        }
        while best.0 + best.2 < old.end && best.1 + best.2 < new.end && are_equal(best.0 + best.2, best.1 + best.2) {
            best.2 += 1;
        }
        best
    }

    /// All runs in order, with adjacent ones merged.
    fn matching_blocks(&self) -> Vec<Block> {
        let mut pending = vec![(0..self.old.len(), 0..self.new.len())];
        let mut found = Vec::new();
        while let Some((old, new)) = pending.pop() {
            let (i, j, length) = self.find_longest_match(old.clone(), new.clone());
            if length > 0 {
                found.push((i, j, length));
                pending.push((old.start..i, new.start..j));
                pending.push((i + length..old.end, j + length..new.end));
            }
        }
        found.sort_unstable();
        let mut joined: Vec<Block> = Vec::new();
        for (i, j, length) in found {
            match joined.last_mut() {
                Some((x, y, run)) if *x + *run == i && *y + *run == j => *run += length,
                _ => joined.push((i, j, length)),
            }
        }
        joined
    }
}

/// Ranges of lines that are equal or different.
struct Step {
    old: std::ops::Range<usize>,
    new: std::ops::Range<usize>,
    is_equal: bool,
}

fn collect_steps(matcher: &Matcher<'_>) -> Vec<Step> {
    let (mut i, mut j, mut out) = (0, 0, Vec::new());
    let end = (matcher.old.len(), matcher.new.len(), 0);
    for (x, y, length) in matcher.matching_blocks().into_iter().chain([end]) {
        if i < x || j < y {
            out.push(Step { old: i..x, new: j..y, is_equal: false });
        }
        if length > 0 {
            out.push(Step { old: x..x + length, new: y..y + length, is_equal: true });
        }
        (i, j) = (x + length, y + length);
    }
    out
}

/// Groups nearby changes with their context.
fn group_hunks(steps: Vec<Step>) -> Vec<Vec<Step>> {
    let last = steps.len().saturating_sub(1);
    let (mut hunks, mut hunk) = (Vec::new(), Vec::new());
    for (index, Step { mut old, mut new, is_equal }) in steps.into_iter().enumerate() {
        if is_equal && index == 0 {
            old.start = old.start.max(old.end.saturating_sub(CONTEXT_LINES));
            new.start = new.start.max(new.end.saturating_sub(CONTEXT_LINES));
        }
        if is_equal && index == last {
            old.end = old.end.min(old.start + CONTEXT_LINES);
            new.end = new.end.min(new.start + CONTEXT_LINES);
        } else if is_equal && old.len() > 2 * CONTEXT_LINES {
            let (old_end, new_end) = (old.start + CONTEXT_LINES, new.start + CONTEXT_LINES);
            hunk.push(Step { old: old.start..old_end, new: new.start..new_end, is_equal });
            hunks.push(std::mem::take(&mut hunk));
            (old.start, new.start) = (old.end - CONTEXT_LINES, new.end - CONTEXT_LINES);
        }
        hunk.push(Step { old, new, is_equal });
    }
    hunks.push(hunk);
    hunks.retain(|hunk| hunk.iter().any(|step| !step.is_equal));
    hunks
}

fn unified_diff(old: &str, new: &str) -> String {
    let matcher = Matcher::new(old, new);
    let mut out = String::new();
    for hunk in group_hunks(collect_steps(&matcher)) {
        let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else { continue };
        let range = |start: usize, end: usize| match end - start {
            1 => format!("{}", start + 1),
            0 => format!("{start},0"),
            length => format!("{},{length}", start + 1),
        };
        let (before, after) = (range(first.old.start, last.old.end), range(first.new.start, last.new.end));
        out.push_str(&format!("@@ -{before} +{after} @@\n"));
        for step in hunk {
            let mut write_lines = |sign: char, lines: &[&str]| {
                lines.iter().for_each(|line| out.extend([sign.to_string().as_str(), line, "\n"]));
            };
            if step.is_equal {
                write_lines(' ', &matcher.old[step.old]);
            } else {
                write_lines('-', &matcher.old[step.old]);
                write_lines('+', &matcher.new[step.new]);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn diffs_match_python_difflib() {
        // Old text, new text, and the diff of Python's difflib.
        let cases = [
            ("a", "a", ""),
            ("a\nb", "a\nc", "@@ -1,2 +1,2 @@\n a\n-b\n+c\n"),
            ("", "a\nb", "@@ -0,0 +1,2 @@\n+a\n+b\n"),
            (
                "1\n2\n3\n4\n5\n6\n7\n8\n9",
                "1\n2\n3\n4\nx\n6\n7\n8\n9",
                "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+x\n 6\n 7\n 8\n",
            ),
            (
                "x\n1\n2\n3\n4\n5\n6\n7\ny",
                "1\n2\n3\n4\n5\n6\n7",
                "@@ -1,4 +1,3 @@\n-x\n 1\n 2\n 3\n@@ -6,4 +5,3 @@\n 5\n 6\n 7\n-y\n",
            ),
            ("q\na\nb\nx\nc\nd", "a\nb\ny\nc\nd\nf", "@@ -1,6 +1,6 @@\n-q\n a\n b\n-x\n+y\n c\n d\n+f\n"),
        ];
        for (old, new, expected) in cases {
            assert_eq!(unified_diff(old, new), expected, "{old:?} {new:?}");
        }
    }

    #[test]
    fn internal_structs_are_compared() {
        let (old, new) = (json!({"volumeName": "a"}), json!({"volumeName": "b"}));
        let actual = format_difference("core.PersistentVolumeClaimSpec", &old, &new);
        let expected = r#"@@ -5,7 +5,7 @@
   "Limits": null,
   "Requests": null
  },
- "VolumeName": "a",
+ "VolumeName": "b",
  "StorageClassName": null,
  "VolumeMode": null,
  "DataSource": null,
"#;
        assert_eq!(actual, expected);
    }
}
