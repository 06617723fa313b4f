//! Code blocks and commands of documentation pages.

use anyhow::{Context, Result};

use crate::{Kubectl, words};

/// Fenced code blocks with this language; an empty string selects blocks without a language.
pub fn fenced_blocks(page: &str, language: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(block_language) = line.strip_prefix("```") else { continue };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        if block_language == language {
            found.push(block.join("\n"));
        }
    }
    found
}

/// Runs the commands in the shell blocks of a page and returns their output. All commands must call kubectl and succeed.
pub fn run_shell_blocks(page: &str, kubectl: &Kubectl) -> Result<Vec<String>> {
    let commands = fenced_blocks(page, "sh").into_iter().flat_map(|block| shell_commands(&block));
    let outputs = commands.map(|ShellCommand { line, input }| {
        let arguments = line.strip_prefix("kubectl ").with_context(|| format!("{line:?} does not call kubectl"))?;
        kubectl.run_ok(&words(arguments), &input)
    });
    outputs.collect()
}

/// A command with the here-document that is its standard input.
#[derive(Debug, PartialEq, Eq)]
struct ShellCommand {
    line: String,
    input: String,
}

/// Commands of a shell block. A line that ends with a backslash continues on the next line.
fn shell_commands(block: &str) -> Vec<ShellCommand> {
    let mut commands = Vec::new();
    let mut lines = block.lines();
    while let Some(first) = lines.next() {
        let mut line = first.to_owned();
        while let Some(start) = line.strip_suffix('\\') {
            line = format!("{start}{}", lines.next().unwrap_or_default().trim_start());
        }
        let (line, input) = match line.split_once(" <<") {
            Some((line, end)) => {
                let input: Vec<&str> = lines.by_ref().take_while(|line| *line != end).collect();
                (line.to_owned(), input.join("\n"))
            }
            None => (line, String::new()),
        };
        commands.push(ShellCommand { line, input });
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_commands_include_here_documents() {
        let page = "```json\n{}\n```\n```sh\nkubectl create -f - <<EOF\n{\n}\nEOF\nkubectl get \\\n  pods\n```\n";
        let blocks = fenced_blocks(page, "sh");
        assert_eq!(blocks.len(), 1, "{blocks:?}");
        let command = |line: &str, input: &str| ShellCommand { line: line.to_owned(), input: input.to_owned() };
        assert_eq!(
            shell_commands(&blocks[0]),
            [command("kubectl create -f -", "{\n}"), command("kubectl get pods", "")]
        );
    }
}
