//! Where a control plane of this machine is kept: flags of whoever starts one.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Clone, Args)]
pub(crate) struct PlaceArgs {
    /// Where everything is kept [default: $XDG_DATA_HOME/crowsnest or ~/.local/share/crowsnest]
    #[arg(long, env = "CROWSNEST_DATA_DIR", value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Throw away everything in the data directory first
    #[arg(long)]
    pub(crate) reset: bool,
}
