//! Region selection: the set of regions that satisfies the minimum and maximum counts and has enough clusters, with
//! the highest weight. A region is called a group, as in Karmada's `select_groups.go`, whose search order and
//! tie-breaking are kept, so that the selection is the same.

/// A region with its number of clusters and its weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub name: String,
    pub clusters: usize,
    pub weight: i64,
}

/// Constraints: minimum and maximum number of groups, and minimum number of clusters in all of them together.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub min_groups: usize,
    pub max_groups: usize,
    pub min_clusters: usize,
}

/// A set of groups that satisfies the constraints.
struct GroupSet {
    /// Position in the order in which the sets were found.
    id: usize,
    /// Indexes into [`Search::groups`], ordered by descending weight, then name.
    groups: Vec<usize>,
    weight: i64,
    clusters: usize,
}

/// Names of the best set of groups by descending weight. Empty if no set satisfies the constraints.
pub fn select(mut groups: Vec<Group>, bounds: Bounds) -> Vec<String> {
    groups.sort_by(|a, b| a.clusters.cmp(&b.clusters).then(b.weight.cmp(&a.weight)).then_with(|| a.name.cmp(&b.name)));
    let mut search = Search { groups: &groups, bounds, current_set: Vec::new(), sets: Vec::new() };
    search.extend(0, 0);
    let indexes = find_best_set(search.sets).map(|set| set.groups).unwrap_or_default();
    indexes.into_iter().map(|index| groups[index].name.clone()).collect()
}

struct Search<'a> {
    groups: &'a [Group],
    bounds: Bounds,
    current_set: Vec<usize>,
    sets: Vec<GroupSet>,
}

impl Search<'_> {
    /// Depth-first search. A set that satisfies the constraints is recorded and not extended. If all groups are
    /// required, only the first set is searched.
    fn extend(&mut self, clusters: usize, begin: usize) {
        let Bounds { min_groups, max_groups, min_clusters } = self.bounds;
        if clusters >= min_clusters && (min_groups..=max_groups).contains(&self.current_set.len()) {
            self.record();
            return;
        }
        if self.current_set.len() >= max_groups {
            return;
        }
        for index in begin..self.groups.len() {
            self.current_set.push(index);
            self.extend(clusters + self.groups[index].clusters, index + 1);
            if self.groups.len() == min_groups {
                break;
            }
            self.current_set.pop();
        }
    }

    fn record(&mut self) {
        let mut groups = self.current_set.clone();
        groups.sort_by(|a, b| {
            let (a, b) = (&self.groups[*a], &self.groups[*b]);
            b.weight.cmp(&a.weight).then_with(|| a.name.cmp(&b.name))
        });
        let weight = groups.iter().map(|index| self.groups[*index].weight).sum();
        let clusters = groups.iter().map(|index| self.groups[*index].clusters).sum();
        self.sets.push(GroupSet { id: self.sets.len() + 1, groups, weight, clusters });
    }
}

/// The set with the highest weight, then the most clusters, then the first one found. A set that is a prefix of it is
/// preferred to it, because it needs fewer groups.
fn find_best_set(mut sets: Vec<GroupSet>) -> Option<GroupSet> {
    sets.sort_by(|a, b| b.weight.cmp(&a.weight).then(b.clusters.cmp(&a.clusters)).then(a.id.cmp(&b.id)));
    sets.into_iter().reduce(|best, set| {
        let is_prefix = set.groups.len() < best.groups.len() && best.groups.starts_with(&set.groups);
        if is_prefix { set } else { best }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn group(name: &str, clusters: usize, weight: i64) -> Group {
        Group { name: name.to_owned(), clusters, weight }
    }

    #[rstest]
    #[case::heaviest_pair(2, 2, 2, &["a", "c"])]
    #[case::one_group_suffices(1, 3, 2, &["a"])]
    #[case::every_group(3, 3, 3, &["a", "c", "b"])]
    #[case::no_maximum_selects_nothing(1, 0, 1, &[])]
    #[case::too_few_clusters(1, 3, 9, &[])]
    fn groups_satisfy_the_constraints(
        #[case] min: usize,
        #[case] max: usize,
        #[case] clusters: usize,
        #[case] expected: &[&str],
    ) {
        let groups = vec![group("a", 2, 300), group("b", 1, 100), group("c", 1, 200)];
        let bounds = Bounds { min_groups: min, max_groups: max, min_clusters: clusters };
        assert_eq!(select(groups, bounds), expected);
    }

    /// The test cases of Karmada: groups with clusters and weights, minimum and maximum of groups, and required
    /// clusters.
    #[rstest]
    #[case::none(&[], 2, 3, 1, &[])]
    #[case::too_few_groups(&[("R1", 1, 80)], 2, 3, 1, &[])]
    #[case::too_few_clusters(&[("R1", 1, 80), ("R2", 2, 30)], 2, 3, 4, &[])]
    #[case::one(&[("R1", 1, 80)], 1, 3, 1, &["R1"])]
    #[case::one_way(
        &[("R1", 1, 80), ("R3", 1, 80), ("R2", 1, 60), ("R5", 2, 60), ("R4", 5, 50), ("R6", 3, 50)], 1, 3, 10, &["R5", "R4", "R6"]
    )]
    #[case::fewer_groups(
        &[("R1", 1, 80), ("R2", 4, 40), ("R3", 1, 30), ("R4", 3, 30), ("R5", 3, 20), ("R6", 5, 10)], 2, 6, 5, &["R1", "R2"]
    )]
    #[case::the_highest_score(
        &[("R1", 1, 60), ("R2", 1, 50), ("R3", 1, 40), ("R4", 3, 30), ("R5", 3, 20), ("R6", 3, 10)], 1, 3, 6, &["R1", "R4", "R5"]
    )]
    #[case::the_first_found(&[("R1", 1, 60), ("R2", 2, 50), ("R3", 3, 40), ("R4", 4, 30)], 1, 2, 5, &["R1", "R4"])]
    #[case::more_clusters(&[("R4", 1, 60), ("R3", 3, 50), ("R1", 3, 40), ("R2", 4, 30)], 1, 2, 5, &["R3", "R1"])]
    fn best_set_of_groups(
        #[case] groups: &[(&str, usize, i64)],
        #[case] min_groups: usize,
        #[case] max_groups: usize,
        #[case] min_clusters: usize,
        #[case] expected: &[&str],
    ) {
        let groups = groups.iter().map(|(name, clusters, weight)| group(name, *clusters, *weight)).collect();
        assert_eq!(select(groups, Bounds { min_groups, max_groups, min_clusters }), expected);
    }
}
