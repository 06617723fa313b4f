//! Steps of a backend's format: which comes next, up or down. How a step is run and remembered is the backend's.

/// One step of the format: to it and back.
pub(super) struct Migration {
    pub up: &'static str,
    pub down: &'static str,
}

/// What brings format `version` one step nearer to `target`, and the format it leads to. `None` when it is there.
pub(super) fn next(steps: &[Migration], version: usize, target: usize) -> Option<(&'static str, usize)> {
    match version.cmp(&target) {
        std::cmp::Ordering::Less => Some((steps[version].up, version + 1)),
        std::cmp::Ordering::Greater => Some((steps[version - 1].down, version - 1)),
        std::cmp::Ordering::Equal => None,
    }
}
