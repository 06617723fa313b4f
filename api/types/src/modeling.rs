//! The classes of nodes clusters get when they name none (Karmada's cluster modeling), and the rules that keep given
//! ones free of gaps.

use crate::cluster::{ResourceModel, ResourceModelRange};
use crowsnest_apimachinery::quantity::{Format, Quantity};

/// Bounds of the default classes: cpu in cores, memory in Gi. The last class has no upper bound.
const CPU_BOUNDS: [i64; 9] = [0, 1, 2, 4, 8, 16, 32, 64, 128];
const MEMORY_BOUNDS: [i64; 9] = [0, 4, 16, 32, 64, 128, 256, 512, 1024];

const GIBI: i64 = 1 << 30;

/// The upper bound that means none.
pub fn unbounded(format: Format) -> Quantity {
    Quantity::new(i64::MAX, format)
}

/// The classes of a cluster that names none: grades 0 to 8 by cpu and memory.
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

/// Puts classes in the order of their grades, opens the first at the bottom and the last at the top.
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
