//! Default resource models of clusters that specify none (Karmada's cluster modeling), and standardization of specified
//! models.

use crate::cluster::{ResourceModel, ResourceModelRange};
use crowsnest_apimachinery::quantity::{Format, Quantity};

/// Bounds of the default models: cpu in cores, memory in Gi. The last model has no upper bound.
const CPU_BOUNDS: [i64; 9] = [0, 1, 2, 4, 8, 16, 32, 64, 128];
const MEMORY_BOUNDS: [i64; 9] = [0, 4, 16, 32, 64, 128, 256, 512, 1024];

const GIBI: i64 = 1 << 30;

/// An unlimited upper bound.
pub fn unbounded(format: Format) -> Quantity {
    Quantity::new(i64::MAX, format)
}

/// The default models: grades 0 to 8 by cpu and memory.
pub fn default_models() -> Vec<ResourceModel> {
    let range = |name: &str, bounds: &[i64; 9], unit: i64, format: Format, grade: usize| {
        let bound = |index: usize| bounds.get(index).map(|bound| Quantity::new(bound * unit, format));
        ResourceModelRange {
            name: name.to_owned(),
            min: bound(grade).unwrap_or(Quantity::ZERO).into(),
            max: bound(grade + 1).unwrap_or(unbounded(format)).into(),
        }
    };
    (0_usize..CPU_BOUNDS.len())
        .zip(0_u64..)
        .map(|(index, grade)| ResourceModel {
            grade,
            ranges: vec![
                range("cpu", &CPU_BOUNDS, 1, Format::DecimalSI, index),
                range("memory", &MEMORY_BOUNDS, GIBI, Format::BinarySI, index),
            ],
        })
        .collect()
}

/// Sorts models by grade, and removes the lower bound of the first and the upper bound of the last one.
pub fn standardize(models: &mut [ResourceModel]) {
    models.sort_by_key(|model| model.grade);
    if let Some(first) = models.first_mut() {
        for range in &mut first.ranges {
            range.min = Quantity::ZERO.into();
        }
    }
    if let Some(last) = models.last_mut() {
        for range in &mut last.ranges {
            range.max = unbounded(Format::DecimalSI).into();
        }
    }
}
