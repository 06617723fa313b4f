//! `crowsnest man`: prints manual pages.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::{Args, CommandFactory};
use clap_mangen::Man;
use crowsnest_cli::examples;

use crate::commands::Cli;

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest man | man -l -",
    "crowsnest man search | man -l -",
    "crowsnest man --dir /usr/local/share/man/man1    all pages, one file each",
])]
pub(crate) struct ManArgs {
    /// Command to document [default: crowsnest]
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
    /// Write all pages to this folder
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

pub(crate) fn run(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let mut command = Cli::command();
    if let Some(dir) = &args.dir {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        clap_mangen::generate_to(command, dir).with_context(|| format!("cannot write pages to {}", dir.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    command.build();
    let mut selected = &command;
    for name in &args.command {
        let found = selected.find_subcommand(name);
        selected = found.ok_or_else(|| anyhow!("unknown command {name:?}; `crowsnest --help` lists the commands"))?;
    }
    let mut page = Vec::new();
    Man::new(selected.clone()).render(&mut page).context("cannot write the page")?;
    std::io::stdout().write_all(&page)?;
    Ok(ExitCode::SUCCESS)
}
