DROP TABLE chosen_labels;
DELETE FROM facts WHERE name = 'chosen_labels';
