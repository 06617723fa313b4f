//! Simulated members as `--members` requests them: a number, names, settings in the text, or a file.
//!
//! [`inline`] and [`file`] read the two forms into [`MemberSettings`], [`shape`] validates them and adds defaults.

mod change;
mod file;
mod inline;
mod settings;
mod shape;

use std::collections::HashSet;
use std::path::PathBuf;
use std::str::FromStr;

use crowsnest_apimachinery::field::{FieldError, aggregate};
use crowsnest_apimachinery::names::ClusterName;

pub(crate) use change::ShapeChange;
use settings::MemberSettings;
pub use shape::MemberShape;

/// Maximum number of simulated members.
const MAX_MEMBERS: usize = 200;

/// Names that members cannot have, because other kubeconfigs in the same folder use them.
const RESERVED_NAMES: [&str; 2] = ["cp", "fleet"];

/// Reason why the requested members cannot be simulated.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    #[error("{0}")]
    Text(String),
    #[error("cannot read the file of members {path:?}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("file of members {path:?}: {reason}")]
    File { path: PathBuf, reason: String },
}

/// Argument of `--members`.
#[derive(Debug, Clone, PartialEq)]
pub enum MembersArg {
    Members(Vec<MemberRequest>),
    /// A YAML or JSON file, which is read later.
    File(PathBuf),
}

/// A requested member.
#[derive(Debug, Clone, PartialEq)]
pub struct MemberRequest {
    pub name: ClusterName,
    /// `None` keeps the recorded shape, or uses the default shape.
    pub shape: Option<MemberShape>,
}

impl FromStr for MembersArg {
    type Err = FleetError;

    fn from_str(text: &str) -> Result<Self, FleetError> {
        if [".yaml", ".yml", ".json"].iter().any(|end| text.ends_with(end)) {
            return Ok(Self::File(text.into()));
        }
        let settings = inline::parse(text).map_err(FleetError::Text)?;
        let paths = settings.iter().map(|(settings, _)| settings.name.clone()).collect();
        resolve_requests(settings, paths).map(Self::Members).map_err(FleetError::Text)
    }
}

impl MembersArg {
    /// The requested members; reads the file.
    pub fn read(self) -> Result<Vec<MemberRequest>, FleetError> {
        match self {
            Self::Members(members) => Ok(members),
            Self::File(path) => {
                let text = match std::fs::read_to_string(&path) {
                    Ok(text) => text,
                    Err(source) => return Err(FleetError::Read { path, source }),
                };
                let requests = file::parse(&text).and_then(|members| {
                    let paths = (0..members.len()).map(|index| format!("members[{index}]")).collect();
                    resolve_requests(members.into_iter().map(|member| (member, true)).collect(), paths)
                });
                requests.map_err(|reason| FleetError::File { path, reason })
            }
        }
    }
}

/// Validates members and adds defaults. The boolean of a member is true if it has settings; `paths` name the members in
/// errors.
fn resolve_requests(members: Vec<(MemberSettings, bool)>, paths: Vec<String>) -> Result<Vec<MemberRequest>, String> {
    if members.len() > MAX_MEMBERS {
        return Err(format!("at most {MAX_MEMBERS} members can be simulated"));
    }
    let (mut requests, mut errors, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
    for (index, ((settings, has_settings), path)) in members.into_iter().zip(paths).enumerate() {
        let name = match ClusterName::from_str(&settings.name) {
            Ok(name) if RESERVED_NAMES.contains(&name.as_str()) => {
                Err(format!("{name} names a kubeconfig of the fleet itself; choose another"))
            }
            Ok(name) if !seen.insert(name.clone()) => Err(format!("{name} is named twice")),
            Ok(name) => Ok(name),
            Err(error) => Err(error.to_string()),
        };
        match name {
            Ok(name) => {
                let shape = has_settings.then(|| shape::resolve(settings, index, &path)).transpose();
                match shape {
                    Ok(shape) => requests.push(MemberRequest { name, shape }),
                    Err(shape_errors) => errors.extend(shape_errors),
                }
            }
            // In the inline form, the path of a member is its name.
            Err(reason) if path == settings.name => return Err(reason),
            Err(reason) => errors.push(FieldError::invalid(format!("{path}.name"), &settings.name, reason)),
        }
    }
    if errors.is_empty() { Ok(requests) } else { Err(aggregate(&errors)) }
}

#[cfg(test)]
mod tests;
