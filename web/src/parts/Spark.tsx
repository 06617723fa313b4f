const WIDTH = 96
const HEIGHT = 24

/** A small line of a number over time; the number itself is next to it. */
export function Spark({ values, label }: { values: number[]; label: string }) {
  const most = Math.max(1, ...values)
  const step = WIDTH / Math.max(1, values.length - 1)
  const points = values.map((value, nth) => `${(nth * step).toFixed(1)},${(HEIGHT - 2 - (value / most) * (HEIGHT - 4)).toFixed(1)}`)
  return (
    <svg className="spark" role="img" aria-label={label} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} width={WIDTH} height={HEIGHT}>
      <title>{label}</title>
      <polyline points={points.join(' ')} />
    </svg>
  )
}
