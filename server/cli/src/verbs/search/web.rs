//! `--web`: prints the UI's URL for a query and opens it in a browser.

use crate::output::terminal;
use std::io::{IsTerminal, Write};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail};
use crowsnest_apimachinery::request::percent_encode;

/// Commands that open a URL, tried after `$BROWSER`.
const OPENERS: [&str; 3] = ["xdg-open", "open", "wslview"];

/// Prints the URL, and opens it if standard output is a terminal.
pub(super) fn open(ui: &str, query: &str) -> anyhow::Result<ExitCode> {
    let url = search_url(ui, query)?;
    writeln!(std::io::stdout(), "{url}")?;
    if std::io::stdout().is_terminal() {
        let browser = std::env::var("BROWSER").ok().filter(|browser| !browser.is_empty());
        let openers = browser.iter().map(String::as_str).chain(OPENERS);
        let mut attempts = openers.map(|opener| Command::new(opener).arg(&url).stderr(Stdio::null()).status());
        if !attempts.any(|status| status.is_ok_and(|status| status.success())) {
            writeln!(terminal::stderr(), "note: no browser found; open the URL manually")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn search_url(ui: &str, query: &str) -> anyhow::Result<String> {
    let mut url = url::Url::parse(ui).with_context(|| format!("--ui-url {ui}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        bail!("invalid --ui-url {ui}: expected an http or https URL");
    }
    let path = format!("{}/search", url.path().trim_end_matches('/'));
    url.set_path(&path);
    url.set_query(Some(&format!("q={}", percent_encode(query))));
    Ok(url.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("http://127.0.0.1:7080", Ok("http://127.0.0.1:7080/search?q=kind%3Apod%20%2Dns%3Aa"))]
    #[case("https://fleet.example/ui/#x", Ok("https://fleet.example/ui/search?q=kind%3Apod%20%2Dns%3Aa#x"))]
    #[case("javascript:alert(1)", Err("expected an http or https URL"))]
    #[case("fleet", Err("--ui-url fleet"))]
    fn queries_become_urls(#[case] ui: &str, #[case] expected: Result<&str, &str>) {
        match (search_url(ui, "kind:pod -ns:a"), expected) {
            (Ok(address), Ok(expected)) => assert_eq!(address, expected),
            (Err(error), Err(expected)) => assert!(format!("{error:#}").contains(expected), "{error:#}"),
            (address, _) => panic!("{address:?}"),
        }
    }
}
