//! Conditions that prevent `crowsnest up` from starting: one line with the remedy, and exit code 1.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::Result;
use crowsnest_tests::{Apiserver, binary};

/// Runs `crowsnest up`, which must exit by itself.
fn run_up(data_dir: &Path, args: &[&str]) -> Result<Output> {
    let mut command = Command::new(binary()?);
    command.args(["up", "--no-members", "--ui-listen", "127.0.0.1:0", "--data-dir"]).arg(data_dir).args(args);
    Ok(command.output()?)
}

/// Checks that the process exited with code 1 and one error that contains this text.
fn expect_error(output: &Output, text: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let errors: Vec<&str> = stderr.lines().filter(|l| l.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{stderr}");
    assert!(errors[0].contains(text), "{stderr}");
}

#[test]
fn a_port_in_use_is_reported() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    expect_error(
        &run_up(&dir.path().join("data"), &["--listen", &address])?,
        &format!("{address} is in use by another program"),
    );
    Ok(())
}

#[test]
fn a_data_directory_of_a_newer_version_is_reported() -> Result<()> {
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("layout.json"), r#"{"layout": 99, "crowsnest": "9.9.9"}"#)?;
    expect_error(&run_up(dir.path(), &["--listen", "127.0.0.1:0"])?, "was written by a newer crowsnest");
    Ok(())
}

#[test]
fn a_read_only_data_directory_is_reported() -> Result<()> {
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("file"), "")?;
    expect_error(
        &run_up(&dir.path().join("file/data"), &["--listen", "127.0.0.1:0"])?,
        "cannot write to data directory",
    );
    Ok(())
}

#[test]
fn a_data_directory_in_use_is_reported() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    // All servers lock their data directory in the same way; this one starts fastest.
    let mut server = Apiserver::start(&data)?;
    expect_error(&run_up(&data, &["--listen", "127.0.0.1:0"])?, "is in use by another crowsnest");
    assert!(server.stop()?.success());
    Ok(())
}

#[test]
fn the_ui_must_listen_on_a_loopback_address() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let output =
        Command::new(binary()?).args(["up", "--ui-listen", "0.0.0.0:0", "--data-dir"]).arg(dir.path()).output()?;
    expect_error(&output, "must be a loopback address");
    Ok(())
}

#[test]
fn invalid_oidc_flags_are_reported() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let plain = ["--listen", "127.0.0.1:0", "--oidc-issuer-url", "http://id.example.com", "--oidc-client-id", "a"];
    expect_error(&run_up(&data, &plain)?, "URL scheme must be https");
    let alone = ["--listen", "127.0.0.1:0", "--oidc-groups-claim", "groups"];
    expect_error(&run_up(&data, &alone)?, "--oidc-issuer-url is missing");
    let secure = ["--listen", "127.0.0.1:0", "--oidc-issuer-url", "https://id.example.com", "--oidc-client-id", "a"];
    let elsewhere = [&secure[..], &["--oidc-redirect-url", "http://fleet.example.com/ui/oidc/callback"]].concat();
    expect_error(&run_up(&data, &elsewhere)?, "plain http is allowed for loopback addresses only");
    Ok(())
}
