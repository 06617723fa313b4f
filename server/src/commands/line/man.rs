//! `crowsnest man`: manual pages, of everything or of one command.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::{Args, CommandFactory};
use clap_mangen::Man;

use crate::commands::Cli;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  crowsnest man | man -l -\n  crowsnest man search | man -l -\n  crowsnest man --dir /usr/local/share/man/man1    all of them, a file each"
)]
pub(crate) struct ManArgs {
    /// Of this command [default: of crowsnest]
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
    /// All pages, as files of this folder
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

pub(crate) fn run(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let mut command = Cli::command();
    if let Some(dir) = &args.dir {
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        clap_mangen::generate_to(command, dir).with_context(|| format!("writing pages into {}", dir.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    command.build();
    let mut wanted = &command;
    for name in &args.command {
        let found = wanted.find_subcommand(name);
        wanted = found.ok_or_else(|| anyhow!("there is no command {name:?}: `crowsnest --help` lists them"))?;
    }
    let mut page = Vec::new();
    Man::new(wanted.clone()).render(&mut page).context("writing the page")?;
    std::io::stdout().write_all(&page)?;
    Ok(ExitCode::SUCCESS)
}
