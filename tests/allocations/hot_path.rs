//! Hot paths and their measurement.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Allocations of one run of a hot path. A reallocation counts as an allocation of the new size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allocations {
    pub count: u64,
    pub bytes: u64,
}

/// A function whose allocations are measured.
pub struct HotPath {
    /// Key in `counts.json`.
    pub name: &'static str,
    measure: Box<dyn Fn() -> Result<Allocations>>,
}

impl HotPath {
    /// A path that needs no new input per run.
    pub fn new<O: 'static>(name: &'static str, run: impl Fn() -> Result<O> + 'static) -> Self {
        Self::with_input(name, || Ok(()), move |()| run())
    }

    /// A path that consumes an input. `prepare` creates it before each run and is not measured.
    pub fn with_input<I: 'static, O: 'static>(
        name: &'static str,
        prepare: impl Fn() -> Result<I> + 'static,
        run: impl Fn(I) -> Result<O> + 'static,
    ) -> Self {
        Self { name, measure: Box::new(move || measure(&prepare, &run)) }
    }

    pub fn measure(&self) -> Result<Allocations> {
        (self.measure)()
    }
}

/// Runs the path twice and measures the second run, because the first one may initialize state.
fn measure<I, O>(prepare: &impl Fn() -> Result<I>, run: &impl Fn(I) -> Result<O>) -> Result<Allocations> {
    run(prepare()?)?;
    let input = prepare()?;
    let mut output = None;
    let info = allocation_counter::measure(|| output = Some(run(input)));
    output.context("the path was not run")??;
    Ok(Allocations { count: info.count_total, bytes: info.bytes_total })
}
