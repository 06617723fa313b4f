package org.elasticsearch.node;

import java.util.List;
import java.util.Map;
import java.util.Set;
import org.elasticsearch.env.Environment;
import org.elasticsearch.plugins.ClassPathPlugins;
import org.elasticsearch.plugins.Plugin;
import org.elasticsearch.plugins.PluginsLoader;
import org.elasticsearch.plugins.PluginsService;

/** A node with plugins of the class path. Is in this package since {@code NodeServiceProvider} is private to it. */
public final class ClassPathNode extends Node {
    public ClassPathNode(Environment environment, List<Class<? extends Plugin>> plugins) {
        super(
            NodeConstruction.prepareConstruction(
                environment,
                PluginsLoader.createPluginsLoader(Set.of(), Set.of(), Map.of(), false),
                new Services(plugins),
                true));
    }

    private static final class Services extends NodeServiceProvider {
        private final List<Class<? extends Plugin>> plugins;

        Services(List<Class<? extends Plugin>> plugins) {
            this.plugins = plugins;
        }

        @Override
        PluginsService newPluginService(Environment environment, PluginsLoader loader) {
            return new ClassPathPlugins(environment, loader, plugins);
        }
    }
}
