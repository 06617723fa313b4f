//! Where a control plane of this machine is kept: flags of whoever starts one.

use std::path::PathBuf;

use clap::Args;
use crowsnest_cli::data_dir::default_data_dir;

use crowsnest_up::Place;

#[derive(Debug, Clone, Args)]
pub(crate) struct PlaceArgs {
    /// Where everything is kept [default: $XDG_DATA_HOME/crowsnest or ~/.local/share/crowsnest]
    #[arg(long, env = "CROWSNEST_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Throw away everything in the data directory first
    #[arg(long)]
    reset: bool,
}

impl PlaceArgs {
    pub(crate) fn config(self) -> Place {
        Place { data_dir: self.data_dir.unwrap_or_else(default_data_dir), reset: self.reset }
    }
}
