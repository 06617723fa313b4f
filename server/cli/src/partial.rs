//! Arguments and exit code of commands that read from the fleet, whose result can be partial.

use std::process::ExitCode;

use clap::Args;

use crate::connection::ConnectionArgs;

/// Exit code for partial results: clusters were left out, or hits may be missing.
pub(crate) const EXIT_PARTIAL: u8 = 5;

#[derive(Debug, Args)]
pub(crate) struct FleetReadArgs {
    /// Exit with 0 even if the result is partial
    #[arg(long)]
    pub(crate) allow_partial: bool,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

impl FleetReadArgs {
    pub(crate) fn exit_code(&self, is_partial: bool) -> ExitCode {
        if is_partial && !self.allow_partial { ExitCode::from(EXIT_PARTIAL) } else { ExitCode::SUCCESS }
    }
}
