// Sections of the UI, and the paths that belong to each.

export type Section = 'home' | 'search' | 'object' | 'fleet' | 'propagation' | 'analysis' | 'saved'

const SECTIONS: readonly (readonly [Section, RegExp])[] = [
  ['home', /^\/$/],
  ['search', /^\/search$/],
  ['object', /^\/object$/],
  ['saved', /^\/saved$/],
  ['fleet', /^\/(fleet(\/(nodes|events|join))?|cluster\/[^/]+)$/],
  ['analysis', /^\/(paths|who-can|assistants)$/],
  ['propagation', /^\/(steer(\/(bindings|failover|quotas|rebalance))?|policy|why|topology|drift|plan)$/],
]

/** The section of a path; undefined if there is no such view. */
export function sectionOf(path: string): Section | undefined {
  return SECTIONS.find(([, paths]) => paths.test(path))?.[0]
}
