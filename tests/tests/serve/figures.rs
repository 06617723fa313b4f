//! Karmada's metrics, by a table of their names: each is served with its labels and a plausible value, or the table
//! gives a reason.

use std::fmt::Write;

use anyhow::Result;
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    #[serde(default)]
    labels: Vec<String>,
    told: Option<String>,
    least: Option<f64>,
    idle: Option<String>,
    elsewhere: Option<String>,
    missing: Option<String>,
}

/// One sample.
struct Sample<'a> {
    name: &'a str,
    labels: &'a str,
    value: f64,
}

impl<'a> Sample<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        Some(Sample { name, labels: labels.strip_suffix('}')?, value: value.parse().ok()? })
    }

    /// The count of a histogram has its own name.
    fn is_of(&self, metric: &str) -> bool {
        self.name == metric || self.name.strip_suffix("_count") == Some(metric)
    }

    fn names(&self) -> Vec<&'a str> {
        let parts = self.labels.split("\",").filter(|part| !part.is_empty());
        parts.filter_map(|part| part.split_once('=')).map(|(name, _)| name).collect()
    }
}

/// Errors in the metrics of several processes, one per line.
pub fn wrong(metrics: &[String]) -> Result<String> {
    let rows: Vec<Row> = serde_saphyr::from_str(include_str!("karmada.yaml"))?;
    let lines = metrics.iter().flat_map(|text| text.lines()).filter(|line| !line.starts_with('#'));
    let samples: Vec<Sample<'_>> = lines.filter_map(Sample::read).collect();
    let mut wrong = String::new();
    for row in &rows {
        let series: Vec<&Sample<'_>> = samples.iter().filter(|sample| sample.is_of(&row.name)).collect();
        let reason = row.missing.as_ref().or(row.elsewhere.as_ref());
        match reason {
            Some(reason) if !series.is_empty() => writeln!(wrong, "{} is served, in spite of: {reason}", row.name)?,
            Some(_) => continue,
            None if series.is_empty() && row.idle.is_none() => writeln!(wrong, "{} is not served", row.name)?,
            None => {}
        }
        if let Some(other) = series.iter().find(|sample| sample.names() != row.labels) {
            writeln!(wrong, "{} has the labels {}", row.name, other.labels)?;
        }
        if let Some(least) = row.least {
            let meant = series.iter().filter(|sample| sample.labels.contains(row.told.as_deref().unwrap_or_default()));
            let values: Vec<f64> = meant.map(|sample| sample.value).collect();
            if values.is_empty() || values.iter().sum::<f64>() < least {
                writeln!(wrong, "{} with {:?} is {values:?}", row.name, row.told)?;
            }
        }
    }
    Ok(wrong)
}
