const WIDTH = 96
const HEIGHT = 24

/** Sparkline: a small line chart of a number over time. */
export function Spark({ values, label }: { values: number[]; label: string }) {
  const max = Math.max(1, ...values)
  const step = WIDTH / Math.max(1, values.length - 1)
  const points = values.map((value, nth) => `${(nth * step).toFixed(1)},${(HEIGHT - 2 - (value / max) * (HEIGHT - 4)).toFixed(1)}`)
  return (
    <svg className="spark" role="img" aria-label={label} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} width={WIDTH} height={HEIGHT}>
      <title>{label}</title>
      <polyline points={points.join(' ')} />
    </svg>
  )
}
