import { toggleFavouriteCluster, usePrefs } from '../prefs'
import { useText } from '../text'
import { Star } from './Star'

/** Star of a cluster. Clusters with a star are listed first. */
export function FavouriteCluster({ name }: { name: string }) {
  const t = useText()
  const { favouriteClusters } = usePrefs()
  return <Star isOn={favouriteClusters.includes(name)} label={t.favouriteCluster(name)} onToggle={() => toggleFavouriteCluster(name)} />
}
