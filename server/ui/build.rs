//! Builds the UI (`web/`) and embeds it, so that `cargo run` is the only command to run. If the build fails, for
//! example without Node, a plain page with instructions is embedded instead. `CROWSNEST_WEB=skip` embeds that page
//! without building, for builds that do not test the UI.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const FALLBACK_PAGE: &str = include_str!("src/unbuilt.html");

fn main() {
    let manifest_dir = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let web = manifest_dir.join("../../web");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("web");
    for path in ["src", "public", "index.html", "package.json", "package-lock.json", "vite.config.ts", "tsconfig.json"]
    {
        println!("cargo::rerun-if-changed={}", web.join(path).display());
    }
    println!("cargo::rerun-if-changed=src/unbuilt.html");
    println!("cargo::rerun-if-env-changed=CROWSNEST_WEB");
    println!("cargo::rustc-env=CROWSNEST_WEB_DIR={}", out.display());
    if let Err(error) = fs::create_dir_all(&out) {
        panic!("{}: {error}", out.display());
    }
    let result = match env::var("CROWSNEST_WEB").as_deref() {
        Ok("skip") => Err("CROWSNEST_WEB=skip".to_owned()),
        _ => build(&web, &out),
    };
    if let Err(reason) = result {
        println!(
            "cargo::warning=the web UI is not built: {reason}. The binary serves a plain page instead; install Node 20.19 or newer and build again."
        );
        let page = FALLBACK_PAGE.replace("{{why}}", &reason.replace('<', "&lt;"));
        if let Err(error) = fs::write(out.join("index.html"), page) {
            panic!("{}: {error}", out.display());
        }
    }
}

/// Runs `npm ci` if the lock file changed since the last build, then Vite with output to `out`.
fn build(web: &Path, out: &Path) -> Result<(), String> {
    let node = Command::new("node").arg("--version").output().map_err(|_| "node was not found".to_owned())?;
    let version = String::from_utf8_lossy(&node.stdout).trim().to_owned();
    if !is_supported(&version) {
        return Err(format!("node {version} is too old"));
    }
    let lock = fs::read(web.join("package-lock.json")).map_err(|e| format!("package-lock.json: {e}"))?;
    // Copy of the lock file that `npm ci` last installed.
    let installed_lock = web.join("node_modules/.crowsnest-lock");
    if fs::read(&installed_lock).ok().as_deref() != Some(&lock[..]) {
        run(Command::new("npm").args(["ci", "--no-audit", "--no-fund"]).current_dir(web))?;
        fs::write(&installed_lock, &lock).map_err(|e| format!("{}: {e}", installed_lock.display()))?;
    }
    run(Command::new("npx")
        .args(["--no-install", "vite", "build", "--emptyOutDir", "--outDir"])
        .arg(out)
        .current_dir(web))
}

/// True for Node 20.19 or newer.
fn is_supported(version: &str) -> bool {
    let mut parts = version.trim_start_matches('v').split('.').map(|p| p.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (20, 19)
}

/// Runs a command; an error contains the last lines of its error output.
fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let last_lines: Vec<&str> = text.lines().rev().filter(|l| !l.trim().is_empty()).take(3).collect();
    Err(format!("{:?} failed: {}", command.get_program(), last_lines.into_iter().rev().collect::<Vec<_>>().join(" / ")))
}
